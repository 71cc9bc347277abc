"""What pretraining shows when it has ended: texts that were written, by a decoder after a prompt or of a source."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import Blocks, Windows
from plmjax.exchange.run_directories import can_export
from plmjax.experiment import Data, Experiment
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.next_token import NextToken
from plmjax.pretraining import summary
from plmjax.training.checkpoints import checkpoints
from tests.finetuning.conftest import bart_run  # noqa: F401 (a fixture)
from tests.systems.modules import random_params

TEXTS = ["the film was a fine scene and a plot", "a poor actor was the awful plot"]


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
