"""Defaults: the documentation names them, and published recipes and old commands rely on them."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.data.mixing import Mixture
from plmjax.parallel.hosts import JoinOptions
from plmjax.training.optimizers import Optimizer
from plmjax.training.optimizers.schedules import Constant, InverseSquareRoot, Linear, Schedule

SETTINGS: dict[type, dict[str, Any]] = {
    experiment.Tokenizer: {"kind": "wordpiece", "vocab_size": 8192},
    experiment.Data: {
        "mixture": Mixture(), "format": "auto", "text_key": "text", "language": "en", "held_out": 0.05,
        "max_unknown": 0.2, "sequence_length": 128, "shuffle_window": 16,
    },
    experiment.Training: {
        "steps": 1000, "batch_size": 32, "accumulation": 1, "log_every": 10, "dtype": "auto", "remat": "none",
        "attention": "dense", "matmul_precision": "float", "gradient_dtype": "float32", "dropout_prng": "auto",
        "platform": "auto", "rings": "auto", "kernels": "auto",
    },
    experiment.Finetuning: {},
    experiment.Checkpoint: {"every": 1000, "keep": 3, "minutes": 10.0, "prefer": "last"},
    experiment.Mesh: {"zero": True},
    experiment.Hosts: {"silent_seconds": 60.0, "stall_minutes": 10.0, "activity_minutes": 60.0},
    experiment.Tracking: {},
    experiment.Phase: {},
    Mixture: {"temperature": 1.0},
    JoinOptions: {"join_seconds": 300.0},
}  # fmt: skip
DECAYED = {"clip_norm": 1.0, "layer_decay": 1.0, "weight_decay": 0.01, "decay_exclude": ("layer_norm", "bias")}
MOMENTS = DECAYED | {"learning_rate": 1e-4, "schedule": Linear(), "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}
RULES: dict[str, dict[str, Any]] = {
    "adafactor": {
        "learning_rate": 0.01, "schedule": InverseSquareRoot(constant_steps=10_000), "layer_decay": 1.0,
        "relative": True, "smallest_size": 1e-3, "decay_exponent": 0.8, "clip_update": 1.0, "epsilon": 1e-30,
        "factored_from": 128,
    },
    "adagrad": {
        "learning_rate": 0.05, "schedule": Constant(), "clip_norm": 1.0, "layer_decay": 1.0, "epsilon": 1e-10
    },
    "adamw": MOMENTS,
    "bert_adamw": MOMENTS,
    "glove_adagrad": {"learning_rate": 0.05, "schedule": Constant(), "layer_decay": 1.0},
    "lamb": MOMENTS,
    "sgd": {
        "learning_rate": 0.1, "schedule": Constant(), "clip_norm": 1.0, "layer_decay": 1.0, "averaging": "none",
        "patience": 5,
    },
}  # fmt: skip
SCHEDULES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("constant", "cosine", "inverse_square_root", "linear", "linear_times_warmup")},
    "inverse_root_time": {"decay": 0.005},
    "inverse_time": {"decay": 1e-8},
    "plateau": {"reduction": 0.1, "patience": 10, "threshold": 1e-4},
    "polynomial": {"power": 1.0},
    "slanted_triangular": {"cut_fraction": 0.1, "ratio": 32.0},
}
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


def of(group: type) -> dict[str, Any]:
    return said({field.name: field.default for field in dataclasses.fields(group)})


@pytest.mark.parametrize("group", SETTINGS, ids=lambda group: group.__name__)
def test_settings_of_a_run_that_nobody_sets(group: type) -> None:
    assert of(group) == SETTINGS[group]


@pytest.mark.parametrize(("family", "expected"), [(Optimizer, RULES), (Schedule, SCHEDULES)])
def test_settings_of_a_rule_or_a_schedule_that_is_chosen_by_its_name(family: type, expected: dict) -> None:
    known = {name: one for name, one in family.choices().items() if one.__module__.startswith("plmjax.")}
    assert {name: of(one) for name, one in known.items()} == expected


@pytest.mark.parametrize("command", cli.VERBS)
def test_options_of_a_command_that_nobody_gives(command: str) -> None:
    parameters = inspect.signature(cli.verb(command)).parameters.values()
    defaults = {one.name: one.default for one in parameters if not dataclasses.is_dataclass(one.default)}
    assert said(defaults) == COMMANDS.get(command, {})
