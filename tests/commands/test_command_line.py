"""The environment, the defaults, the division of arguments and the ends of commands."""

import contextlib
import dataclasses
import inspect
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from plmjax import platform
from plmjax.commands import cli, command_line
from plmjax.errors import Unavailable, UserError
from plmjax.parallel.hosts import JoinOptions
from plmjax.parallel.stopping import Interrupted

OWN = {
    "JAX_COMPILATION_CACHE_DIR": "{folder}/plmjax/compilation", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
}  # fmt: skip
"""Variable -> what a command sets where the user has not."""


@pytest.mark.parametrize("users", [{}, dict.fromkeys(OWN, "the user's own")], ids=["none", "set"])
def test_a_command_sets_variables_that_the_user_has_not_set(users: dict, tmp_path: Path, monkeypatch, capsys) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)} | users
    monkeypatch.setattr(cli.os, "environ", environment)
    monkeypatch.setattr("sys.argv", ["plmjax", "experiments"])
    cli.main()
    assert "bert_tiny" in capsys.readouterr().out
    expected = {name: value.format(folder=tmp_path) for name, value in OWN.items()} | users
    assert {name: environment[name] for name in OWN} == expected


def test_a_training_on_a_cpu_keeps_its_memory(fails, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple] = []
    for verb, tpu, gpu in itertools.product(
        ("pretrain", "finetune", "bench", "evaluate"), (True, False), (True, False)
    ):
        monkeypatch.setattr(platform, "has_tpu", lambda found=tpu: found)
        monkeypatch.setattr(platform, "has_gpu", lambda found=gpu: found)
        monkeypatch.setattr(platform, "keep_freed_memory", lambda case=(verb, tpu, gpu): kept.append(case))
        fails(verb, "nowhere", "--nothing")
    assert kept == [(verb, False, False) for verb in ("pretrain", "finetune", "bench")]


def test_options_of_the_experiment_are_those_with_a_dot_and_the_optimizer() -> None:
    """With all words after them, up to the next option; a value may hold a dot."""
    own, overrides = command_line.split_arguments(
        "bert_tiny --workdir a.b --training.profile_steps 5 6 --seeds 1 2 --optimizer lamb --json "
        "--optimizer.beta1=0.5 --price=1.2".split()
    )
    assert own == "bert_tiny --workdir a.b --seeds 1 2 --json --price=1.2".split()
    assert overrides == "--training.profile_steps 5 6 --optimizer lamb --optimizer.beta1=0.5".split()


@pytest.mark.parametrize("order", [1, -1])
def test_an_option_of_the_whole_run_is_suggested_before_one_of_a_phase(order: int) -> None:
    def verb(name: str = "") -> None:
        """Does nothing."""

    known = ["--phases.0.batch_size", "--training.batch_size", "--training.steps"][::order]
    with pytest.raises(UserError, match=r"found '--batch_siz'; did you mean '--training\.batch_size'\?"):
        command_line.parse(verb, "plmjax verb", ["--batch_siz", "8"], lambda: known)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("Expected a text."), 2, "Expected a text."),
        (Interrupted("Saved at step 3."), 75, "Saved at step 3. Run the same command again to continue."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (PermissionError(13, "Permission denied", "file"), 2, "Expected to read or write file, found: Permission"),
        (Unavailable("Expected an answer."), 69, "Expected an answer."),
        (ConnectionResetError(104, "Connection reset by peer"), 69, "Expected an answer from the network, found"),
        (JaxRuntimeError("UNAVAILABLE: connection to worker 3 lost"), 69, ""),
        (JaxRuntimeError("INTERNAL: a core of the chip failed"), 69, ""),
        (RuntimeError("Unable to initialize backend 'tpu': the device is busy"), 69, ""),
        (JaxRuntimeError("INVALID_ARGUMENT: shapes differ"), 1, ""),
        (ZeroDivisionError("by zero"), 1, ""),
    ],
)
def test_a_command_ends_with_the_code_of_its_error(error: BaseException, code: int, sentence: str) -> None:
    found = command_line.exit_status(error)
    assert found[0] == code and found[1].startswith(sentence) and bool(found[1]) == bool(sentence)


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (UserError("Expected a text."), 2, "tpu: Expected a text.\n"), (KeyboardInterrupt(), 130, "tpu: Stopped.\n"),
        (ZeroDivisionError("by zero\nand more"), 1, "Traceback"), (BrokenPipeError(), 0, ""), (None, None, ""),
    ],
)  # fmt: skip
def test_a_command_says_why_it_ends(error: BaseException | None, code: int | None, shown: str, capsys) -> None:
    """While it runs a warning is its text alone."""

    def command() -> None:
        assert not logging.getLogger("plmjax").propagate
        if error is not None:
            raise error

    with contextlib.nullcontext() if code is None else pytest.raises(SystemExit) as stop:
        command_line.run_command(command, "tpu")
    assert code is None or stop.value.code == code
    found = capsys.readouterr()
    assert found.err.startswith(shown) and bool(found.err) is bool(shown) and not found.out
    assert logging.getLogger("plmjax").propagate


TEXT = {"format": "auto", "text_key": "text"}
COMMANDS: dict[str, dict[str, Any]] = {
    "tokenizer train": {"kind": "wordpiece", "vocab_size": 30522, **TEXT},
    "prepare": {"held_out": 0.005, "language": "en", "max_unknown": 0.2, **TEXT},
    "cooccurrence": {"window": 10, "symmetric": True, "min_count": 5, "memory": 1024},
    "pretrain": {"from_": "random"},
    "predict": {"format": "jsonl", "max_unknown": 0.2},
    "embed": {"layer": -1, "batch_size": 32, "max_unknown": 0.2},
    "attention": {"batch_size": 8, "max_unknown": 0.2},
    "fill-mask": {"top": 5},
    "nearest": {"top": 10},
    "generate": {"max_unknown": 0.2},
    "plan": {"from_": "random"},
    "bench": {"measured_steps": 10},
    "average": {"last": 5},
    "compress prune": {"method": "magnitude"},
    "compress distil": {"method": "soft_targets"},
    "compress quantize": {"method": "weight_only", "granularity": "channel"},
    "compress share": {"groups": 1},
    "augment": {"text": ("text",), "copies": 20, "candidates": 15, "fraction": 0.4},
    "import": {"architecture": "auto"},
    "export": {"architecture": "auto", "to": "transformers"},
    "report": {"output": Path("report.html")},
}
"""Command -> its defaults. The others are none, 0, False or empty everywhere here."""


def said(defaults: dict[str, Any]) -> dict[str, Any]:
    """The defaults that say something."""
    nothing = ("", (), 0, None, False, dataclasses.MISSING, inspect.Parameter.empty)
    return {name: value for name, value in defaults.items() if value not in nothing}


@pytest.mark.parametrize("command", cli.VERBS)
def test_options_of_a_command_that_nobody_gives(command: str) -> None:
    parameters = inspect.signature(cli.verb(command)).parameters.values()
    defaults = {one.name: one.default for one in parameters if not dataclasses.is_dataclass(one.default)}
    assert said(defaults) == COMMANDS.get(command, {})
    assert JoinOptions().join_seconds == 300.0
