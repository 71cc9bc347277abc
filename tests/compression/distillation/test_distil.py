"""`plmjax compress distil`: from a teacher to the run of its student."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.distillation.captured_activations import one_token_inputs
from plmjax.compression.distillation.distilled import TEACHER
from plmjax.contracts.execution import Execution
from plmjax.data import pipeline
from plmjax.experiment import WeightMapping
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints

TRAINED = ["--training.steps", "4", "--training.evaluate_every", "0", "--checkpoint.every", "2"]


def flat(run: Path) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(checkpoints.load_parameters(run)[0], sep="/")


def log(run: Path) -> dict[str, Any]:
    """The last record of the training."""
    return [line for line in metrics.read(run / "training" / "metrics.jsonl") if "train/loss" in line][-1]


class Preempted(Exception):
    """Ends a run from within."""


@pytest.mark.nightly
def test_a_student_is_a_run_and_goes_on_to_the_same_bits(small_run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The teacher is written once, beside the checkpoints, and is part of none."""

    def command(output: Path) -> list[str]:
        options = ["--method", "distilbert", "--compression.restrict", "True", *TRAINED]
        return ["compress", "distil", str(small_run), "--output", str(output), *options]

    student, stopped = tmp_path / "student", tmp_path / "stopped"
    cli.run(command(student))
    assert "parameters became" in capsys.readouterr().out
    teacher, params, run = flat(small_run), flat(student), checkpoints.describe(checkpoints.find(student)).experiment
    assert run.compression is None
    assert params.keys() == teacher.keys()  # both have the heads of BERT's two tasks
    assert not any(np.array_equal(params[path], teacher[path]) for path in params if "/layers/" in path)
    constants = flax.traverse_util.flatten_dict(checkpoints.read_constants(student / "training")[TEACHER], sep="/")
    chex.assert_trees_all_equal(constants, teacher)
    assert checkpoints.read_constants(student) == ()
    (record,) = json.loads((student / "ancestry.json").read_text())["ancestors"]
    assert record["from"] == str(small_run) and record["by"] == "distil" and record["settings"]["layers"] == [0]
    found = log(student)
    assert {"train/soft_targets_loss", "train/cosine_loss", "train/agreement", "train/mlm_loss"} <= found.keys()
    cli.run(["evaluate", str(student), "--data", str(small_run / "dataset"), "--json"])
    assert json.loads(capsys.readouterr().out)["eval/mlm_loss"] > 0

    def preempted(self: Any, *arguments: Any) -> Iterator[dict[str, np.ndarray]]:
        batches = train(self, *arguments)
        for _ in range(3):
            yield next(batches)
        batches.close()
        raise Preempted

    train = pipeline.DatasetSource.train
    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(pipeline.DatasetSource, "train", preempted)
        cli.run(command(stopped))
    cli.run(command(stopped))
    chex.assert_trees_all_equal(flat(stopped), params)


@pytest.mark.parametrize("stored", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["layers", "stored"])
def test_students_of_a_task(stored: bool, task_run: Path, tmp_path: Path, capsys) -> None:
    """A narrow student of layers, and one that learns from stored scores of the teacher."""
    output, narrow = tmp_path / "student", ["--model.hidden_size", "16", "--model.intermediate_size", "32"]
    options = ["--method", "tinybert", "--student", "random", *narrow, *TRAINED]
    if stored:
        few = ["--training.steps", "2", "--training.evaluate_every", "0", "--checkpoint.every", "0"]
        options = ["--method", "soft_targets", "--compression.top_k", "2", "--student", str(task_run), *few]
    cli.run(["compress", "distil", str(task_run), "--output", str(output), *options])
    capsys.readouterr()
    params, trained = flat(output), flat(output / "training")
    assert not any(path.startswith("compression") for path in params)
    assert ("compression/map/kernel" in trained) != stored
    terms = {"soft_targets_loss"} if stored else {"hidden_states_loss", "attention_scores_loss"}
    assert {f"train/{term}" for term in terms} <= log(output).keys()
    found, own = (checkpoints.describe(checkpoints.find(run)).experiment for run in (output, task_run))
    assert found.objective == own.objective and found.compression is None and found.weight_mapping == WeightMapping()
    settings = json.loads((output / "ancestry.json").read_text())["ancestors"][-1]["settings"]
    assert "teacher" not in settings
    if stored:
        constants = checkpoints.read_constants(output / "training")[TEACHER]
        assert constants["logits"].shape == (200, 2) and set(constants) == {"classes", "logits", "offsets"}
        assert settings["student"] == str(task_run) and "layers" not in settings
        assert found.model == own.model
        return
    cli.run(["evaluate", str(output), "--json"])
    assert 0 <= json.loads(capsys.readouterr().out)["eval/accuracy"] <= 1


@pytest.mark.nightly
def test_a_mobilebert_learns_its_layers_and_has_the_embeddings_of_its_teacher(
    small_run: Path, tmp_path: Path, capsys
) -> None:
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    run = checkpoints.describe(checkpoints.find(small_run)).experiment
    sizes = {"vocab_size": 800, "max_position_embeddings": 64, "hidden_size": 16, "embedding_size": 8}
    larger = MobileBertConfig.ib_bert_mini(**sizes, intra_bottleneck_size=32, intermediate_size=64)
    module, draws = run.objective.module(larger, Execution()), np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), **one_token_inputs(larger)))["params"]
    params = jax.tree.map(lambda one: draws.normal(size=one.shape).astype(np.float32), nn.meta.unbox(shapes))
    files = checkpoints.tokenizer_files(small_run / "tokenizer")
    checkpoints.save_parameters(teacher, params, dataclasses.replace(run, model=larger), tokenizer=files)
    words = ["compress", "distil", str(teacher), "--method", "mobilebert", "--experiment", "mobilebert_8x8:tiny"]
    text = ["--data.path", str(small_run / "dataset"), "--compression.steps_per_layer", "2"]
    sizes |= {"intra_bottleneck_size": 8, "intermediate_size": 16, "num_feedforward_networks": 1}
    sizes = [word for name, size in sizes.items() for word in (f"--model.{name}", str(size))]
    options = [*text, *sizes, "--training.batch_size", "8", "--training.evaluation_batches", "1", *TRAINED]
    cli.run([*words, "--output", str(student), *options])
    assert "parameters became" in capsys.readouterr().out
    found, taught = flat(student), flat(teacher)
    kept = {path for path in found if "/layers/" not in path}
    assert "mobilebert/embeddings/word_embeddings/embedding" in kept and "next_sentence/kernel" in kept
    chex.assert_trees_all_equal({path: found[path] for path in kept}, {path: taught[path] for path in kept})
    attention = found["mobilebert/encoder/layers/attention/query/kernel"]
    assert attention.shape == (2, 8, 4, 2)
    first = flat(student / "training" / "checkpoints" / "2")["mobilebert/encoder/layers/attention/query/kernel"]
    assert np.any(first[0] != attention[0]) and np.any(first[1] != attention[1])
    (record,) = json.loads((student / "ancestry.json").read_text())["ancestors"]
    assert record["settings"]["student"] is None and record["settings"]["below"] == 0.1
