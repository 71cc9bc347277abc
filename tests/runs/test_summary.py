"""The summary of a pretraining that has ended: texts that were written, by a decoder after a prompt or of a source."""

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax import experiment
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import Blocks, Windows
from plmjax.experiment import Data, Experiment
from plmjax.generation import generate
from plmjax.generation.options import Generation
from plmjax.generation.writer import settings_of
from plmjax.interop.run_directories import can_export
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.next_token import NextToken
from plmjax.runs import summary
from plmjax.training.checkpoints import checkpoints
from tests.finetuning.conftest import bart_run  # noqa: F401 (a fixture)
from tests.systems.modules import random_params

TEXTS = ["the film was a fine scene and a plot", "a poor actor was the awful plot"]


@pytest.mark.nightly
def test_an_encoder_decoder_shows_what_it_makes_of_held_out_texts(
    bart_run: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary, "_held_out", lambda *_: TEXTS)
    workdir, said = shutil.copytree(bart_run, tmp_path / "run"), []
    summary._generate(None, None, workdir, said.append)
    samples = [json.loads(line) for line in (workdir / summary.SAMPLES).read_text().splitlines()]
    assert [sample["prompt"] for sample in samples] == [" ".join(text.split()[:8]) for text in TEXTS]
    assert len(said) == 2 and said[0].startswith(f"generate   {samples[0]['prompt']} -> ")


def test_a_held_out_text_that_the_model_cannot_read_is_no_example(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of rare words has more tokens when its text is encoded alone."""
    monkeypatch.setattr(summary, "_held_out", lambda *_: ["incomprehensibilities " * 16, TEXTS[0]])
    said: list[str] = []
    summary._fill(None, None, small_run, said.append)
    assert len(said) == 1 and said[0].startswith("fill-mask  the film was a [MASK] scene")


def test_losses_are_shown_beside_those_of_the_counts() -> None:
    """exp(2) = 7.3891 and exp(3) = 20.086."""
    said: list[str] = []
    for metrics, perplexity in (({}, True), ({}, False), ({"eval/unigram_loss": 4.5}, True)):
        summary._show_losses({"eval/loss": 2.0, "eval/unigram_entropy": 3.0} | metrics, perplexity, said.append)
    loss = "held-out   loss 2.0000 nats a target; unigram entropy of the same targets 3.0000"
    assert said == [
        f"{loss}; perplexity 7.3891 against 20.086",
        loss,
        "held-out   loss 2.0000; with the counts of words only 4.5000",
    ]


def test_a_run_is_complete_where_the_library_of_its_export_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AwdLstmConfig(vocab_size=9, embedding_size=6, hidden_size=10, num_layers=2)
    run = Experiment(model=config, objective=AwdLstmPretraining(), data=Data(Windows()))
    checkpoints.save_parameters(tmp_path, random_params(config.module(Purpose.PRETRAINING, Execution())), run, {})
    found, said = importlib.util.find_spec, []
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    summary._export(tmp_path, said.append)
    (sentence,) = said
    assert sentence.startswith("exported   nothing: Expected torch to write") and sentence.endswith("install torch.")


@pytest.mark.parametrize("window", [None, 3])
def test_a_run_with_a_window_is_complete_without_an_export(window: int | None, tmp_path: Path) -> None:
    """transformers has no such model; without the window the same run has a form."""
    config = Gpt2Config.tiny(vocab_size=9, n_embd=8, n_positions=8, attention_window=window)
    run = Experiment(model=config, objective=NextToken(), data=Data(Blocks()))
    checkpoints.save_parameters(tmp_path, random_params(config.module(Purpose.PRETRAINING, Execution())), run, {})
    assert can_export(tmp_path) == (window is None)
    if window:
        summary._export(tmp_path, pytest.fail)


def test_held_out_examples_are_rows_of_eight_words_and_more_without_special_tokens() -> None:
    """At most sixteen words of each, of the batches of the last phase."""
    rows = [[0, *range(2, 9), 1], [0, *range(2, 10), 1], [0, 2, 1, *range(3, 24)]]
    places = []

    def evaluation(phase, of_batch):
        places.append((phase.batch_size, of_batch.tolist()))
        width = max(map(len, rows))
        return [{"input_ids": np.array([[*row, *[1] * (width - len(row))]])} for row in rows]

    source = SimpleNamespace(vocabulary=SimpleNamespace(special=(0, 1)), evaluation=evaluation)
    result = SimpleNamespace(program=SimpleNamespace(evaluation_phase=SimpleNamespace(batch_size=3)))
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(f"w{number}" for number in ids))
    found = [text.split() for text in summary._held_out(result, source, tokenizer)]
    assert found == [[f"w{number}" for number in range(2, 10)], [f"w{number}" for number in range(2, 18)]]
    assert places == [(3, [0, 1, 2])]


@dataclasses.dataclass
class Sample:
    """A text that a decoder wrote."""

    prompt: str
    text: str = "and so on"


@pytest.mark.parametrize(
    ("longest", "ends", "reads_sources", "prompts", "most"),
    [
        (10, 3, False, ["", "a b c", "d e", "f"], 5),
        (10, -1, False, ["a b c", "d e", "f"], 5),
        (10, 3, True, ["a b c", "d e", "f"], 5),
        (2, 3, False, ["", "f"], 1),
        (400, 3, False, ["", "one two three four five six seven eight", "a b c", "d e"], 48),
    ],
)
def test_a_decoder_goes_on_from_beginnings_that_leave_it_half_of_its_positions(
    longest: int, ends: int, reads_sources: bool, prompts: list[str], most: int, tmp_path: Path, monkeypatch
) -> None:
    """It begins a text too, if a token does. The settings of the checkpoint choose its tokens."""
    config = Gpt2Config.tiny(vocab_size=9, n_embd=8, n_positions=longest)
    settings = Generation(temperature=0.5, top_k=3, max_new_tokens=7)
    run = Experiment(model=config, objective=NextToken(), data=Data(Blocks()), generation=settings)
    experiment.write(run, tmp_path / "experiment.json")
    held_out = ["one two three four five six seven eight nine", "a b c", "d e", "f", "g h"]
    given = {}

    class Stub:
        continues = not reads_sources

        def __init__(self) -> None:
            self.reads_sources = reads_sources

        def __call__(self, texts, chosen):
            given.update(texts=texts, settings=chosen)
            return [[Sample(text)] for text in texts]

    tokenizer = SimpleNamespace(encode=str.split, vocabulary=SimpleNamespace(document_end=ends))
    monkeypatch.setattr("plmjax.data.tokenizers.load", lambda path: tokenizer)
    monkeypatch.setattr(generate.Generator, "load", lambda workdir, **_: Stub())
    monkeypatch.setattr(summary, "_held_out", lambda *_: held_out)
    said: list[str] = []
    summary._generate(None, None, tmp_path, said.append)
    assert given["texts"] == prompts and given["settings"].max_new_tokens == most
    assert given["settings"] == settings_of(dataclasses.replace(settings, max_new_tokens=most), batch_size=4)
    written = [json.loads(line) for line in (tmp_path / summary.SAMPLES).read_text().splitlines()]
    assert [sample["prompt"] for sample in written] == prompts and len(said) == 2
    between = " -> " if reads_sources else " ..." if prompts[0] else ""
    assert said[0] == f"generate   {prompts[0]}{between}and so on"
