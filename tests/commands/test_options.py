"""Options that all commands share are read by each of them, and every setting of an experiment is read somewhere."""

import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from tyro.conf import Positional

from plmjax import experiment as experiments
from plmjax.commands import cli, training
from plmjax.data.mixing import Mixture
from plmjax.experiment import catalogue
from plmjax.inference import fill_gaps
from plmjax.inference import word_vector_scores as scores
from plmjax.interop import word_vectors as vectors
from plmjax.parallel.hosts import JoinOptions
from tests.paths import ROOT


class Called(Exception):
    """Ends a command where the library would do its work."""


def end(*given: Any, **named: Any) -> None:
    raise Called(*given, *named.values())


def parameters(verb: Callable) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(verb).parameters)


OF_CLASSES = [
    name
    for name in cli.VERBS
    if (found := parameters(cli.verb(name)).get("experiment")) is not None and found.default is None
]
"""Commands that read a checkpoint whose classes an experiment may define."""


def needed(verb: Callable) -> list[str]:
    """The arguments that a command cannot do without, each with a path for a value."""
    found: list[str] = []
    for name, parameter in parameters(verb).items():
        if parameter.default is inspect.Parameter.empty:
            positional = Positional[Any].__metadata__[0] in get_args(parameter.annotation)
            found += ["some/path"] if positional else [f"--{name}", "some/path"]
    return found


def test_most_commands_take_the_classes_of_an_experiment() -> None:
    assert {"evaluate", "generate", "card", "export", "compress prune", "average"} <= {*OF_CLASSES}


@pytest.mark.parametrize("command", OF_CLASSES)
def test_the_classes_of_an_experiment_are_imported_before_a_checkpoint_is_read(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "load_classes", end)
    with pytest.raises(Called) as called:
        cli.run([*command.split(), *needed(cli.verb(command)), "--experiment", "mine.py"])
    assert called.value.args == ("mine.py",)


@pytest.mark.parametrize("command", ["pretrain bert_tiny", "finetune finetune_sentences --from random"])
def test_the_hosts_of_a_run_are_joined_first(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.peers, "join", end)
    hosts = "--coordinator first:1 --hosts 4 --host 2 --join_seconds 7"
    with pytest.raises(Called) as called:
        cli.run(shlex.split(f"{command} {hosts}"))
    assert called.value.args == (JoinOptions("first:1", 4, 2, 7.0),)


def test_words_reach_the_vectors_that_they_are_looked_up_in(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    found = SimpleNamespace(nearest=lambda words, minus, top: [(f"{words} without {minus}", top / 8)])
    monkeypatch.setattr(vectors, "read", lambda path: found)
    cli.run(["nearest", "v.txt", "king", "woman", "--minus", "man", "--top", "3"])
    assert capsys.readouterr().out == " 0.3750  ('king', 'woman') without ('man',)\n"
    monkeypatch.setattr(vectors, "read", lambda path: f"vectors of {path}")
    monkeypatch.setattr(scores, "score", end)
    for task in ("similarity", "analogy"):
        with pytest.raises(Called) as called:
            cli.run(["evaluate", "v.txt", "--task", task, "--data", "pairs.tsv", "--output", "out"])
        assert called.value.args == ("vectors of v.txt", task, "pairs.tsv", Path("out"))


def test_a_model_that_writes_gaps_is_asked_for_as_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill_gaps, "writes_gaps", lambda checkpoint: True)
    monkeypatch.setattr(fill_gaps, "fill_gaps", end)
    with pytest.raises(Called) as called:
        cli.run(["fill-mask", "some/run", "a [MASK]", "--top", "3"])
    assert called.value.args == (Path("some/run"), "a [MASK]", 3)


GROUPS = {
    "tokenizer": experiments.Tokenizer,
    "data": experiments.Data,
    "mixture": Mixture,
    "training": experiments.Training,
    "finetuning": experiments.Finetuning,
    "checkpoint": experiments.Checkpoint,
    "mesh": experiments.Mesh,
    "hosts": experiments.Hosts,
    "tracking": experiments.Tracking,
    "phase": experiments.Phase,
    "run": experiments.Experiment,
}
"""Name by which the library reads a group of settings -> its class."""
OTHERS = {"settings": ("tokenizer", "hosts", "checkpoint", "finetuning"), "experiment": ("run",), "self": ("mixture",)}
"""Another name of a group where it is read."""


def test_every_setting_of_an_experiment_is_read() -> None:
    """By the name of its group, outside of the file that declares it."""
    read: set[tuple[str, str]] = set()
    for file in (ROOT / "plmjax").rglob("*.py"):
        if file.name != "settings.py" or file.parent.name != "experiment":
            read |= {*re.findall(r"\b(?=(\w+)\.(\w+)\b)", file.read_text(encoding="utf-8"))}
    read |= {(group, field) for name, groups in OTHERS.items() for group in groups for of, field in read if of == name}
    settings = {(group, field.name) for group, kind in GROUPS.items() for field in dataclasses.fields(kind)}
    assert settings - read == set()
