"""ULMFiT's three stages as three commands, from both ends of a text, and the two classifiers as one."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.training.checkpoints import checkpoints

SMALL = ["--data.sequence_length", "24", "--training.batch_size", "2", "--training.steps", "2"]
STAGE = [*SMALL, "--data.layout.overlap", "4", "--data.held_out", "0", "--training.evaluate_every", "0"]
MODEL = ["embedding_size", "8", "num_layers", "1", "vocab_size", "30"]
BELOW = {"": "task", "_backwards": "general"}
"""Suffix of the stages of a direction -> stage from which its classifier starts."""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three stages, two steps each; and a classifier upon the first one's parameters, read from a text's end."""
    folder = tmp_path_factory.mktemp("ulmfit")
    draws = np.random.default_rng(0)
    rows = []
    for number in range(12):
        words = draws.choice(["a", "film", "of", "the", "plot", "scene"], 30).tolist()
        rows.append({"text": " ".join([*words, "good" if number % 2 else "bad"]), "label": "ab"[number % 2]})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = ["--data.input", str(folder / "train.jsonl")]
    sizes = [part for name, size in zip(MODEL[::2], MODEL[1::2], strict=True) for part in (f"--model.{name}", size)]
    general, task = str(folder / "general"), str(folder / "task")
    first = ["pretrain", "experiments/ulmfit.py:general", *texts, *sizes, "--tokenizer.vocab_size", "13", *STAGE]
    cli.run([*first, "--workdir", general])
    cli.run(["pretrain", "experiments/ulmfit.py:task", "--from", general, "--workdir", task, *texts, *STAGE])
    params, description = parameters(folder / "general")
    run = description.experiment
    turned = dataclasses.replace(run, model=dataclasses.replace(run.model, backwards=True))
    files = checkpoints.tokenizer_files(folder / "general" / "tokenizer")
    checkpoints.save_parameters(folder / "general_backwards", params, turned, tokenizer=files)
    for way, below in BELOW.items():
        labelled = [f"--data.{name}={folder / 'train.jsonl'}" for name in ("train", "validation")]
        command = ["finetune", "experiments/ulmfit.py:classifier", "--from", str(folder / f"{below}{way}"), *labelled]
        epochs = ["--finetuning.epochs", "0", "--finetuning.evaluations", "0", "--finetuning.unfreeze", "0.34"]
        cli.run([*command, "--workdir", str(folder / f"classifier{way}"), *SMALL, *epochs])
    return folder


def parameters(run: Path) -> tuple[dict, checkpoints.Description]:
    return checkpoints.load_parameters(run)


@pytest.mark.nightly
@pytest.mark.parametrize("way", BELOW)
def test_each_stage_begins_with_the_one_before(stages: Path, way: str) -> None:
    """The head alone is trained for two steps, a third of an epoch of six: the layers are the second stage's."""
    names = BELOW[way], "classifier"
    (below, _), (classifier, description) = (parameters(stages / f"{name}{way}") for name in names)
    for one, other in zip(jax.tree.leaves(below["awd_lstm"]), jax.tree.leaves(classifier["awd_lstm"]), strict=True):
        np.testing.assert_array_equal(one, other)
    run = description.experiment
    assert run.optimizer.unfreeze_every == 2 and run.model.output_dropout == 0.4
    assert run.model.system.backwards == run.model.template.backwards == bool(way)
    assert "output_bias" in below and "output_bias" not in classifier
    if not way:
        general, _ = parameters(stages / "general")
        before, after = (one["awd_lstm"]["word_embeddings"]["embedding"] for one in (general, below))
        assert 0 < np.abs(after - before).max() < 0.02


@pytest.mark.nightly
def test_running_statistics_are_kept_and_averaged(stages: Path, tmp_path: Path) -> None:
    last = checkpoints.find(stages / "classifier")
    statistics = checkpoints.load_collections(last)["batch_stats"]["classifier"]
    assert all((np.abs(norm["mean"]) > 0).any() and (norm["variance"] != 1).any() for norm in statistics.values())
    cli.run(["average", str(stages / "classifier"), "--last", "1", "--output", str(tmp_path / "mean")])
    again = checkpoints.load_collections(checkpoints.find(tmp_path / "mean"))["batch_stats"]["classifier"]
    jax.tree.map(np.testing.assert_array_equal, statistics, again)


@pytest.mark.nightly
def test_both_ends_predict_together(stages: Path, capsys: pytest.CaptureFixture) -> None:
    cli.run(["evaluate", str(stages / "classifier"), "--ensemble", str(stages / "classifier_backwards"), "--json"])
    assert 0 <= json.loads(capsys.readouterr().out)["eval/accuracy"] <= 1
