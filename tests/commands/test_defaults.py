"""Defaults of the options of commands; tests/goldens/defaults.txt has those of settings."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from plmjax.commands import cli
from plmjax.parallel.hosts import JoinOptions

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
    "augment": {"text": ("text",), "copies": 20, "candidates": 15, "share": 0.4},
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
