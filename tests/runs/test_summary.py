"""What a run says: notes on its settings, and at its end its losses and filled masks or texts that were written."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.contracts.execution import Execution
from plmjax.contracts.parameters import abstract_parameters
from plmjax.data import preparation, remote, store, tokenizers
from plmjax.generation.options import Generation
from plmjax.interop import run_directories
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.runs import notes, summary
from tests.families import STEPS


def shown(workdir: Path, **metrics: float) -> list[str]:
    """The lines about a run in a folder with its dataset."""
    run, said = experiment.read(workdir / "experiment.json"), []
    tokenizer = tokenizers.load(workdir / "tokenizer")
    source = remote.source(
        run.data.layout, store.open_dataset(workdir / "dataset"), tokenizer.vocabulary, seed=0, window=1
    )
    program = SimpleNamespace(evaluation_phase=run.resolved_phases[-1].evaluation, experiment=run)
    found: Any = SimpleNamespace(metrics=metrics, program=program, state=SimpleNamespace(step=jax.numpy.int32(6)))
    summary.show(found, source, workdir, said.append)
    return said


def copied(run: Path, folder: Path) -> Path:
    """The run with a dataset of short words."""
    shutil.copytree(run, folder / "run")
    lines = (f"the film was a fine scene and a plot in {place} or so of it all" for place in range(60))
    (folder / "text.txt").write_text("\n\n".join(lines))
    text = [[str(folder / "text.txt")], "text", tokenizers.load(run / "tokenizer"), folder / "run" / "dataset"]
    preparation.prepare(*text, validation=0.5, max_unknown=1.0)
    return folder / "run"


@pytest.fixture(autouse=True)
def without_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all else."""
    monkeypatch.setattr(run_directories, "can_export", lambda workdir: False)


def test_an_encoder_fills_masks_of_held_out_texts_beside_its_losses(small_run: Path) -> None:
    """exp(2) = 7.3891 and exp(3) = 20.086. Without an evaluation it has nothing to show."""
    assert shown(small_run) == []
    losses, limited, *masks = shown(small_run, **{"eval/loss": 2.0, "eval/unigram_entropy": 3.0})
    assert limited == f"           of 2 batches at most; plmjax evaluate {small_run} reads all held-out text"
    assert losses == (
        "held-out   loss 2.0000 nats a target; unigram entropy of the same targets 3.0000; perplexity 7.3891 against "
        "20.086"
    )
    assert 0 < len(masks) <= 3 and all("[MASK]" in line and line.startswith("fill-mask  ") for line in masks)


def test_a_decoder_writes_after_beginnings_that_leave_it_half_of_its_positions(decoder_run: Path, tmp_path) -> None:
    """It begins a text too. The settings of the checkpoint that it started from choose its tokens."""
    workdir = copied(decoder_run, tmp_path)
    run = experiment.read(workdir / "experiment.json")
    settings = Generation(temperature=0.0, top_k=3, max_new_tokens=7)
    experiment.write(dataclasses.replace(run, generation=settings), workdir / "experiment.json")
    said = shown(workdir, **{"eval/loss": 2.0, "eval/unigram_entropy": 3.0})
    assert said[0].startswith("held-out") and [line.split()[0] for line in said[1:]] == ["generate"] * 2
    samples = [json.loads(line) for line in (workdir / summary.SAMPLES).read_text().splitlines()]
    half, tokenizer = min(48, run.model.longest // 2), tokenizers.load(workdir / "tokenizer")
    assert samples[0]["prompt"] == "" and 1 < len(samples) <= 4
    assert all(0 < sample["tokens"] <= half for sample in samples)
    assert all(len(tokenizer.encode(sample["prompt"])) <= half for sample in samples)
    assert [len(sample["prompt"].split()) for sample in samples[1:]] == [8] * (len(samples) - 1)
    shown(workdir)
    again = [json.loads(line) for line in (workdir / summary.SAMPLES).read_text().splitlines()]
    assert again == samples  # the likeliest tokens


MASKED = [name for name, (step, _) in STEPS.items() if isinstance(step().objective, MaskedLanguageModel)]


@pytest.mark.parametrize("name", MASKED)
def test_a_run_that_fills_masks_at_its_end_has_trained_their_head(name: str) -> None:
    run = STEPS[name][0]()
    modules = (make(run.model, Execution()) for make in (run.objective.module, run.objective.module_for_masks))
    token = {"input_ids": np.zeros((1, 1), np.int32)}
    trained, needed = (set(flax.traverse_util.flatten_dict(abstract_parameters(one, token))) for one in modules)
    assert needed <= trained


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"steps": 100}, ["warm-up of 200 steps", "ends at 50%", "--optimizer.schedule.warmup_steps"]),
        ({"batch_size": 128}, ["4.0 times the tokens", "--training.steps 1000"]),
        ({"batch_size": 128, "steps": 1000}, []),
        ({"batch_size": 8}, []),
    ],
)
def test_settings_that_are_rarely_meant_are_noted(training: dict[str, Any], words: list[str]) -> None:
    run = experiment.load("bert_tiny")
    changed = dataclasses.replace(run, training=dataclasses.replace(run.training, **training))
    found = [*notes.on_settings(changed, run)]
    assert len(found) == bool(words) and all(word in found[0] for word in words)


def test_rows_of_words_that_no_token_uses_and_predictions_of_one_label_are_noted() -> None:
    run = experiment.load("modernbert_tiny")
    (found,) = notes.on_vocabulary(run, 2000)
    assert "4,096 rows of words for the 2,000 tokens" in found and not [*notes.on_vocabulary(run, 4000)]
    for labels, predictions, noted in (
        ("good bad", "bad bad", 1),
        ("good bad", "good bad", 0),
        ("bad bad", "bad bad", 0),
    ):
        pairs = zip(labels.split(), predictions.split(), strict=True)
        rows = [f"{line}\t{label}\t{prediction}\n" for line, (label, prediction) in enumerate(pairs)]
        found = [*notes.on_predictions({"predictions.tsv": "line\tlabel\tprediction\n" + "".join(rows)})]
        assert len(found) == noted and all("every prediction is 'bad'" in line for line in found)
    assert not [*notes.on_predictions({})]
