"""Every setting of a pretraining run reaches the part of the library that it is for; nothing is read or trained."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax import experiment, libraries
from plmjax.data import mixture, store
from plmjax.data.layouts import Blocks, SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Data, Experiment, Training
from plmjax.generation import generate
from plmjax.models.bert import BertConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_token import NextToken
from plmjax.parallel import hosts
from plmjax.runs import checks, mixtures, pretraining, summary
from plmjax.training import loop, tracking
from plmjax.training.checkpoints import start
from plmjax.training.optimizers import BertAdamW


class Called(Exception):
    """Ends a run where the library would do its work."""


def end(*given: Any, **named: Any) -> None:
    raise Called(*given, *named.values())


def run_of(training: Training = Training(), **data: Any) -> Experiment:
    return Experiment(
        model=BertConfig.tiny(vocab_size=70),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=16, **data),
        optimizer=BertAdamW(),
        training=training,
    )


ORIGIN = SimpleNamespace(
    description=None,
    name="random",
    recorded=None,
    tokenizer=lambda run: None,
    check=lambda run, tokenizer, batch: None,
)
"""Random parameters."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> value that all hosts agree on."""
    found: dict[str, str] = {}
    monkeypatch.setattr(hosts, "agree", lambda name, value="": found.update({name: value}))
    return found


@pytest.mark.parametrize("described", [None, "a run"])
def test_a_run_is_checked_for_the_devices_of_its_platform(
    described: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text may be without a tokenizer if a checkpoint brings one."""
    done: list[Any] = []
    devices = [SimpleNamespace(slice_index=number // 2) for number in range(4)]
    monkeypatch.setattr(checks, "text", lambda run, has_tokenizer: done.append(has_tokenizer))
    monkeypatch.setattr(loop, "devices", lambda platform: done.append(platform) or devices)
    monkeypatch.setattr(checks, "pretraining", lambda run, *counts: done.append(counts))
    monkeypatch.setattr(tracking, "check", lambda run: done.append("tracking"))
    pretraining._check(run_of(Training(platform="gpu")), SimpleNamespace(description=described))
    assert done == [described is not None, "gpu", (4, 2), "tracking"]


def test_hosts_agree_on_the_whole_experiment_and_the_versions(
    said: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = run_of(path="dataset")
    monkeypatch.setattr(pretraining, "started", lambda run, checkpoint: (run, ORIGIN))
    monkeypatch.setattr(pretraining, "_check", lambda run, origin: None)
    monkeypatch.setattr(pretraining, "_prepare", end)
    with pytest.raises(Called):
        pretraining.pretrain(run, tmp_path)
    found = json.loads(said["the experiment"])
    assert found == json.loads(json.dumps(experiment.flatten(run))) | libraries.versions()


@pytest.mark.parametrize(("finished", "kept"), [(False, False), (True, True)])
def test_what_a_refused_first_command_wrote_is_removed_but_for_a_finished_dataset(
    finished: bool, kept: bool, said: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = ["experiment.json", start.RECORD, mixtures.RECORD, "tokenizer"]

    def refused(*_: Any) -> None:
        for name in made:
            (tmp_path / name).write_text("{}")
        if finished:
            (tmp_path / "dataset").mkdir()
            (tmp_path / "dataset" / store.LEDGER).write_text("{}")
        raise UserError("Expected text, found none; name some.")

    monkeypatch.setattr(mixture, "open_sources", lambda *_: {})
    monkeypatch.setattr(pretraining, "_tokenizer", refused)
    text = tmp_path / "text.txt"
    text.write_text("Words.")
    with pytest.raises(UserError, match="Expected text"):
        pretraining._prepare(run_of(input=(str(text),)), ORIGIN, tmp_path, print)
    assert [(tmp_path / name).exists() for name in made] == [kept] * len(made)


@pytest.mark.parametrize(
    ("model", "objective", "metrics", "shown"),
    [
        (BertConfig.tiny(), MaskedLanguageModel(), {"eval/loss": 1.0}, ["losses True", "fill", "export"]),
        (BertConfig.tiny(), MaskedLanguageModel(), {}, ["export"]),
        (Gpt2Config.tiny(), NextToken(), {"eval/loss": 1.0}, ["losses True", "generate", "export"]),
        (Gpt2Config.tiny(), NextToken(), {}, ["generate", "export"]),
    ],
)
def test_a_summary_shows_what_the_model_of_the_run_can_do(
    model: Any, objective: Any, metrics: dict, shown: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment.write(Experiment(model=model, objective=objective, data=Data(Blocks())), tmp_path / "experiment.json")
    done: list[str] = []
    monkeypatch.setattr(
        summary, "_show_losses", lambda metrics, perplexity, report: done.append(f"losses {perplexity}")
    )
    for name in ("fill", "generate", "export"):
        monkeypatch.setattr(summary, f"_{name}", lambda *_, name=name: done.append(name))
    summary.show(SimpleNamespace(metrics=metrics), SimpleNamespace(), tmp_path)
    assert done == shown


def test_texts_for_the_report_go_on_from_any_beginning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A prompt of unknown tokens is one too."""
    run = Experiment(model=Gpt2Config.tiny(), objective=NextToken(), data=Data(Blocks()), checkpoint=Checkpoint())
    experiment.write(run, tmp_path / "experiment.json")
    monkeypatch.setattr("plmjax.data.tokenizers.load", lambda path: None)
    monkeypatch.setattr(generate.Generator, "load", end)
    with pytest.raises(Called) as called:
        summary._generate(None, None, tmp_path, print)
    assert called.value.args == (tmp_path, 1)


def test_a_host_that_writes_nothing_removes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    experiment.write(run_of(input=("a.txt",)), tmp_path / "experiment.json")
    monkeypatch.setattr(hosts, "is_primary", lambda: False)
    pretraining._remove_outdated(run_of(input=("b.txt",)), tmp_path, True, pytest.fail)
    assert (tmp_path / "tokenizer").exists()


@pytest.mark.parametrize(
    ("inputs", "kind", "expected"),
    [((), "documentation", "documentation"), (("a",), "documentation", "auto"), (("a",), "jsonl", "jsonl")],
)
def test_text_that_is_named_replaces_the_documentation(inputs: tuple[str, ...], kind: str, expected: str) -> None:
    assert pretraining._inputs(run_of(input=inputs, format=kind)) == ([*inputs], expected)
