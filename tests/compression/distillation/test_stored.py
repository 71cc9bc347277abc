"""Stored scores of a teacher: the loss is that of the live teacher, of all classes or of the likeliest."""

import contextlib
import dataclasses
import functools
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.compression.distillation import stored
from plmjax.compression.distillation.distilled import TEACHER
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.finetuning.inputs import rows
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.text_generation import TextGeneration, Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import LossInputs
from plmjax.training.checkpoints import checkpoints
from tests.compression.distillation.pairs import pair, shifted
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
    objective = run.compression.trained(run.objective, 1)
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
        stored.write(path, run, teacher, "teacher", tokenizer, top_k)
        compression = dataclasses.replace(run.compression, top_k=top_k, stored=str(path))
        constants = compression.teacher_constants(run.objective, None)
        found[top_k] = loss_of(dataclasses.replace(run, compression=compression), student, constants, batch)
    assert found[run.model.vocab_size] == pytest.approx(live, rel=1e-5)
    assert found[3][1] == live[1] and found[3][0] != pytest.approx(live[0], rel=1e-3)
    flops = compression.trained(run.objective, 1).train_flops(run.model, jax.eval_shape(lambda: batch))
    assert flops == run.objective.train_flops(run.model, batch)


class Rows:
    """Five texts in rows of one, read two at a time: the last batch is filled up."""

    encoded = types.SimpleNamespace(decoder=None, offsets=[0, 4, 7, 9, 12, 13], arrays=lambda: [np.arange(13)])
    in_order = np.arange(5)[:, None]

    def __len__(self) -> int:
        return 5

    def batch(self, table: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        assert len(table) == len(rows) == 2
        return {"example_ids": table}


def test_every_text_is_written_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def largest(objective, module, top_k, params, batch, offsets):
        example = batch["example_ids"]
        logits = example[..., None] + 0.5 * jnp.arange(top_k)
        return 10 * example[..., None] + jnp.arange(top_k), logits, offsets[jnp.maximum(example, 0)], example >= 0

    monkeypatch.setattr(stored, "ROWS", 2)
    monkeypatch.setattr(stored, "rows", lambda run, examples, tokenizer: Rows())
    monkeypatch.setattr(stored, "_largest", largest)
    distillation = SoftTargetDistillation(teacher=BertConfig.tiny())
    data = types.SimpleNamespace(read=lambda split: split, sequence_length=8, target_length=0, pack=1)
    run = types.SimpleNamespace(
        objective=SequenceClassification(labels=("a", "b")), data=data, compression=distillation
    )
    stored.write(tmp_path / "file.npz", run, {}, "teacher", None, 2)
    found = stored.read(tmp_path / "file.npz")
    assert found["offsets"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["classes"].tolist() == [[10 * text, 10 * text + 1] for text in range(5)]
    np.testing.assert_array_equal(found["logits"], np.arange(5)[:, None] + np.float32([0, 0.5]))


def test_scores_are_kept_for_the_same_teacher_and_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another teacher, other rows, another way to read them and a damaged file are computed again."""

    def largest(objective, module, top_k, params, batch, offsets):
        example = jnp.maximum(batch["example_ids"], 0)
        logits = jnp.zeros((*example.shape, top_k)) + params["bias"]
        return logits.astype(int), logits, offsets[example], batch["example_ids"] >= 0

    monkeypatch.setattr(stored, "ROWS", 2)
    monkeypatch.setattr(stored, "_largest", largest)
    contents = {"tokens": np.arange(13)}
    made = Rows()
    made.encoded = types.SimpleNamespace(**vars(Rows.encoded) | {"arrays": lambda: contents.values()})
    monkeypatch.setattr(stored, "rows", lambda run, examples, tokenizer: made)
    data = types.SimpleNamespace(read=lambda split: split, sequence_length=8, target_length=0, pack=1)
    distillation = SoftTargetDistillation(teacher=BertConfig.tiny())
    run = types.SimpleNamespace(
        objective=SequenceClassification(labels=("a", "b")), data=data, compression=distillation
    )
    path = tmp_path / "teacher_top_2.npz"

    def written(params: float, teacher: str) -> bool:
        before = path.stat().st_mtime_ns if path.exists() else 0
        stored.write(path, run, {"bias": params}, teacher, None, 2)
        assert stored.read(path)["logits"].tolist() == [[params, params]] * 5
        return path.stat().st_mtime_ns != before

    assert [written(1.0, "one"), written(1.0, "one"), written(2.0, "two")] == [True, False, True]
    contents["tokens"] = np.arange(1, 14)
    assert [written(2.0, "two"), written(2.0, "two")] == [True, False]
    data.sequence_length = 9
    assert [written(2.0, "two"), written(2.0, "two")] == [True, False]
    path.write_bytes(path.read_bytes()[:-7])
    assert [written(2.0, "two"), written(2.0, "two")] == [True, False]
    path.write_bytes(b"PK" + bytes(40))
    with pytest.raises(UserError, match="Expected the scores of a teacher in"):
        stored.read(path)


SECOND_SIDE = {"decoder_segment_ids": [[1, 1, 2, 2, 2]], "decoder_positions": [[0, 1, 0, 1, 2]]}


@pytest.mark.parametrize(
    ("objective", "batch", "expected"),
    [
        (SequenceClassification(labels=("a", "b")), {"example_ids": [[2, 0], [1, 1]]}, [[5, 0], [3, 3]]),
        (
            TextGeneration(max_new_tokens=4),
            {"example_ids": [[1, 0]], "segment_ids": [[1, 1, 2, 2, 2]], "positions": [[0, 1, 0, 1, 2]]},
            [[3, 4, 0, 1, 2]],
        ),
        (
            Translation(max_new_tokens=4),
            {"example_ids": [[1, 0]], "segment_ids": [[1, 1, 1, 1, 2]], "positions": [[0, 1, 2, 3, 0]], **SECOND_SIDE},
            [[3, 4, 0, 1, 2]],
        ),
    ],
    ids=["texts", "one side", "two sides"],
)
def test_a_prediction_has_its_row_of_the_file(objective, batch: dict, expected: list) -> None:
    """Three examples begin at the rows 0, 3 and 5."""
    arrays = {name: jnp.asarray(field) for name, field in batch.items()}
    found = stored.places(objective, arrays, jnp.asarray([0, 3, 5, 6]))
    assert found.tolist() == expected


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


def test_a_batch_has_the_stored_scores_of_its_texts(tmp_path: Path) -> None:
    """From the file that the settings name, in place of the teacher."""
    draws = np.random.default_rng(0)
    arrays = {
        "classes": draws.integers(0, 5, (4, 2)),
        "logits": draws.normal(size=(4, 2)),
        "offsets": np.arange(5),
    }
    np.savez(tmp_path / "scores.npz", **arrays)
    method = SoftTargetDistillation(teacher=BertConfig.tiny(), top_k=2, stored=str(tmp_path / "scores.npz"))
    objective = SequenceClassification(labels=("a", "b"))
    constants = method.teacher_constants(objective, None)
    assert {name: array.dtype.name for name, array in constants.items()} == {
        "classes": "int32", "logits": "float32", "offsets": "int32",
    }  # fmt: skip
    reading = method.taught(objective, None, constants, {"example_ids": jnp.array([[3, 0]])}, None)
    assert reading.config == method.teacher and not method.is_live and reading.params is None
    np.testing.assert_array_equal(reading.outputs.classes, arrays["classes"][[[3, 0]]])
    np.testing.assert_array_equal(reading.outputs.logits, arrays["logits"][[[3, 0]]].astype(np.float32))


def test_the_largest_scores_of_a_teacher_are_those_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """All classes where there are fewer than are asked for; a place without a text has no weight."""
    logits = jnp.array([[[1.0, 3, 2], [5, 4, 6]]], jnp.bfloat16)

    @contextlib.contextmanager
    def observed(config, params, *, scores):
        assert (config, params, scores) == ("its config", "its parameters", True)
        yield types.SimpleNamespace(outputs=types.SimpleNamespace(logits=logits))

    asked = []
    monkeypatch.setattr(stored, "observed", observed)
    monkeypatch.setattr(stored, "apply", lambda *arguments, training: asked.append((arguments[2].params, training)))
    module, objective = types.SimpleNamespace(config="its config"), SequenceClassification(labels=("a", "b", "c"))
    batch = {"example_ids": jnp.array([[1, -1]])}
    for top_k, kept in ((2, 2), (7, 3)):
        found = stored._largest(objective, module, top_k, "its parameters", batch, jnp.array([10, 20]))
        classes, values, places, weights = found
        assert classes.tolist() == [[[1, 2, 0][:kept], [2, 0, 1][:kept]]]
        assert values.tolist() == [[[3, 2, 1][:kept], [6, 5, 4][:kept]]] and values.dtype == jnp.float32
        assert places[0, 0] == 20 and weights.tolist() == [[1, 0]]
    assert asked == [("its parameters", False)] * 2


def test_mistakes(tmp_path: Path, translation: tuple) -> None:
    with pytest.raises(UserError, match=r"Expected the scores of a teacher in .*, found FileNotFoundError"):
        stored.read(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="found ValueError"):
        stored.read(tmp_path / "bad.npz")
    with pytest.raises(UserError, match=r"for --compression.top_k, found BertPretraining"):
        stored.check(pair("bert", SoftTargetDistillation()).inner, translation[0].data)
