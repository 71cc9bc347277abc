"""The summary of a pretraining that has ended: its losses, filled masks or texts that were written, and its export."""

import dataclasses
import importlib.util
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
from plmjax.contracts.system import Purpose
from plmjax.data import preparation, remote, store, tokenizers
from plmjax.data.layouts import Chunks, Windows
from plmjax.experiment import Data, Experiment
from plmjax.generation.options import Generation
from plmjax.interop import run_directories
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_token import NextToken
from plmjax.runs import summary
from plmjax.training.checkpoints import checkpoints
from tests.families import STEPS
from tests.finetuning.conftest import bart_run  # noqa: F401 (a fixture)
from tests.systems.modules import random_params


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


@pytest.fixture
def without_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all else."""
    monkeypatch.setattr(run_directories, "can_export", lambda workdir: False)


@pytest.mark.usefixtures("without_export")
def test_an_encoder_fills_masks_of_held_out_texts_beside_its_losses(small_run: Path, tmp_path: Path) -> None:
    """exp(2) = 7.3891 and exp(3) = 20.086. Without an evaluation it has nothing to show."""
    assert shown(small_run) == []
    losses, limited, *masks = shown(small_run, **{"eval/loss": 2.0, "eval/unigram_entropy": 3.0})
    assert limited == f"           of 2 batches at most; plmjax evaluate {small_run} reads all held-out text"
    assert losses == (
        "held-out   loss 2.0000 nats a target; unigram entropy of the same targets 3.0000; perplexity 7.3891 against "
        "20.086"
    )
    assert 0 < len(masks) <= 3 and all("[MASK]" in line and line.startswith("fill-mask  ") for line in masks)
    shutil.copytree(small_run, tmp_path / "run")
    short = experiment.read(tmp_path / "run" / "experiment.json")
    model = dataclasses.replace(short.model, max_position_embeddings=8)
    experiment.write(dataclasses.replace(short, model=model), tmp_path / "run" / "experiment.json")
    said = shown(tmp_path / "run", **{"eval/loss": 2.0, "eval/unigram_loss": 4.5})
    assert said[0] == "held-out   loss 2.0000; with the counts of words only 4.5000"
    assert len(said) == 2 and "of 2 batches at most" in said[1]  # no text is short enough to fill its mask


@pytest.mark.usefixtures("without_export")
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


@pytest.mark.nightly
@pytest.mark.usefixtures("without_export")
def test_an_encoder_decoder_shows_what_it_makes_of_held_out_texts(
    bart_run: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    workdir = copied(bart_run, tmp_path)
    said = [line for line in shown(workdir) if line.startswith("generate")]
    samples = [json.loads(line) for line in (workdir / summary.SAMPLES).read_text().splitlines()]
    assert all(len(sample["prompt"].split()) == 8 for sample in samples)
    assert len(said) == 2 and said[0].startswith(f"generate   {samples[0]['prompt']} -> ")


def saved(folder: Path, model: Any, objective: Any, layout: Any) -> Path:
    run = Experiment(model=model, objective=objective, data=Data(layout))
    checkpoints.save_parameters(
        folder, random_params(model.module(Purpose.PRETRAINING, Execution())), run, tokenizer={}
    )
    return folder


def test_a_run_is_complete_where_the_library_of_its_export_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AwdLstmConfig(vocab_size=9, embedding_size=6, hidden_size=10, num_layers=2)
    workdir = saved(tmp_path, model, AwdLstmPretraining(), Windows())
    found, said = importlib.util.find_spec, []
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    modules = {purpose: one for purpose, one in model.system.modules.items() if purpose is not Purpose.CAUSAL_LM}
    monkeypatch.setattr(type(model), "system", dataclasses.replace(model.system, modules=modules))
    summary.show(SimpleNamespace(metrics={}), SimpleNamespace(), workdir, said.append)
    assert len(said) == 1 and said[0].startswith("exported   nothing: ") and "torch" in said[0]


@pytest.mark.parametrize("window", [None, 3])
def test_a_run_with_a_window_has_no_export(window: int | None, tmp_path: Path) -> None:
    """transformers has no such model; without the window the same run has a form."""
    model = Gpt2Config.tiny(vocab_size=9, n_embd=8, n_positions=8, attention_window=window)
    assert run_directories.can_export(saved(tmp_path, model, NextToken(), Chunks())) == (window is None)


MASKED = [name for name, (step, _) in STEPS.items() if isinstance(step().objective, MaskedLanguageModel)]


@pytest.mark.parametrize("name", MASKED)
def test_a_run_that_fills_masks_at_its_end_has_trained_their_head(name: str) -> None:
    run = STEPS[name][0]()
    trained, needed = (
        set(
            flax.traverse_util.flatten_dict(
                abstract_parameters(module, {"input_ids": np.zeros((1, 1), np.int32)}), sep="/"
            )
        )
        for module in (
            run.objective.module(run.model, Execution()),
            run.objective.module_for_masks(run.model, Execution()),
        )
    )
    assert needed <= trained
