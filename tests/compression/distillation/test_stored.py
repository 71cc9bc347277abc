"""Stored scores of a teacher: the loss is that of the live teacher, of all classes or of the likeliest."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.compression.distillation import stored
from plmjax.compression.distillation.distilled import TEACHER
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.contracts.execution import Execution
from plmjax.experiment import Experiment
from plmjax.finetuning.inputs import rows
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.objectives.objective import LossInputs
from plmjax.training.checkpoints import checkpoints
from tests.compression.distillation.pairs import shifted
from tests.finetuning.conftest import WORDS, bart_run  # noqa: F401  a fixture


@pytest.fixture(scope="module")
def translation(bart_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, dict, dict, object]:  # noqa: F811
    """(a run that translates, parameters of its student and of its teacher, its tokenizer)."""
    folder, draws = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    lines = [" ".join(draws.choice(WORDS, draws.integers(1, 5))) for _ in range(7)]
    for side in ("en", "de"):
        (folder / f"train.{side}").write_text("\n".join(lines[:: 1 if side == "en" else -1]) + "\n", encoding="utf-8")
    params, description = checkpoints.load_parameters(bart_run)
    data = TextPairs(
        train=str(folder / "train.en"), source="en", target="de", sequence_length=48, target_length=48, pack=3
    )
    model, objective = description.experiment.model, Translation(max_new_tokens=16)
    distillation = SoftTargetDistillation(teacher=model, temperature=1.5)
    run = Experiment(model, objective, data, compression=distillation)
    return run, shifted(params), params, description.load_tokenizer()


def loss_of(run: Experiment, params: dict, constants: dict, batch: dict) -> tuple[float, float]:
    """(mean of the term, agreement)."""
    objective = run.compression.training_objective(run.objective, 1)
    module = objective.module(run.model, Execution())
    compute = jax.jit(functools.partial(objective.sums, module, training=True))
    sums = jax.device_get(compute(LossInputs(params, {TEACHER: constants}), batch, jax.random.key(0)))
    weight = objective.weights(batch)["soft_targets"]
    return float(sums.losses["soft_targets"] / weight), float(sums.metrics["agreement"][0])


@pytest.mark.nightly
def test_translations(translation: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed pairs in another order than that of the file, of which the teacher reads two rows at once."""
    run, student, teacher, tokenizer = translation
    monkeypatch.setattr(stored, "ROWS", 2)
    examples = rows(run, run.data.read("train"), tokenizer)
    batch = examples.batch(examples.in_order[::-1], np.arange(len(examples)))
    live = loss_of(run, student, teacher, batch)
    found = {}
    for top_k in (run.model.vocab_size, 3):
        path = tmp_path / stored.FILE.format(top_k)
        stored.write(path, run, teacher, teacher="teacher", tokenizer=tokenizer, top_k=top_k)
        compression = dataclasses.replace(run.compression, top_k=top_k, stored=str(path))
        constants = compression.teacher_constants(run.objective, None)
        found[top_k] = loss_of(dataclasses.replace(run, compression=compression), student, constants, batch)
    assert found[run.model.vocab_size] == pytest.approx(live, rel=1e-5)
    assert found[3][1] == live[1] and found[3][0] != pytest.approx(live[0], rel=1e-3)
    flops = compression.training_objective(run.objective, 1).train_flops(run.model, jax.eval_shape(lambda: batch))
    assert flops == run.objective.train_flops(run.model, batch)


def test_labels_of_texts(task_run: Path, tmp_path: Path) -> None:
    """The teacher has dropout in training alone, and its scores are kept for the same teacher and rows."""
    params, description = checkpoints.load_parameters(task_run)
    run, tokenizer = description.experiment, description.load_tokenizer()
    method = SoftTargetDistillation(teacher=run.model, temperature=1.5)
    run, path = dataclasses.replace(run, compression=method), tmp_path / "teacher_top_2.npz"
    examples = rows(run, run.data.read("train"), tokenizer)
    batch = examples.batch(examples.in_order[::-1], np.arange(len(examples)))

    def written(params: dict, teacher: str) -> bool:
        before = path.stat().st_mtime_ns if path.exists() else 0
        stored.write(path, run, params, teacher=teacher, tokenizer=tokenizer, top_k=2)
        return path.stat().st_mtime_ns != before

    assert [written(params, "one"), written(params, "one")] == [True, False]
    compression = dataclasses.replace(method, top_k=2, stored=str(path))
    constants, student = compression.teacher_constants(run.objective, None), shifted(params)
    assert constants["logits"].shape == (200, 2) and constants["offsets"].tolist() == list(range(201))
    found = loss_of(dataclasses.replace(run, compression=compression), student, constants, batch)
    assert found == pytest.approx(loss_of(run, student, params, batch), rel=1e-5)
    first = stored.read(path)["logits"]
    assert [written(student, "two"), written(student, "two")] == [True, False]
    assert not np.allclose(stored.read(path)["logits"], first)
    path.write_bytes(path.read_bytes()[:-7])
    assert written(student, "two")


def test_the_largest_of_many_classes() -> None:
    """KL from the teacher's distribution over its k classes, by hand."""
    draws = np.random.default_rng(0)
    student, teacher = draws.normal(size=(2, 5, 9)).astype(np.float32)
    classes = np.argsort(-teacher, axis=-1)[:, :3]
    scores = stored.StoredScores(classes, np.take_along_axis(teacher, classes, axis=-1))
    found = scores.divergence(student, 2.0)
    for row in range(5):
        chosen = np.exp(teacher[row, classes[row]] / 2)
        p = chosen / chosen.sum()
        q = np.exp(student[row] / 2) / np.exp(student[row] / 2).sum()
        assert float(found[row]) == pytest.approx(4 * (p * np.log(p / q[classes[row]])).sum(), rel=1e-5)
