"""The steps that are compared by the length of their rows."""

import importlib
from types import ModuleType

import pytest

from plmjax.contracts.system import Purpose
from tests.paths import ROOT


@pytest.fixture
def long_attention(monkeypatch) -> ModuleType:
    """benchmarks/long_attention.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("long_attention")


def test_every_kind_has_one_size(long_attention) -> None:
    for kind in long_attention.KINDS:
        config = long_attention.config_of(kind, 1024)
        assert (config.width, config.depth, config.vocab_size) == (256, 2, 4096)
        purpose = Purpose.WRITING if kind in long_attention.DECODERS else Purpose.MASKED_TOKENS
        assert purpose in config.system


def test_a_step_is_timed_and_its_memory_grows(long_attention) -> None:
    shorter, longer = (long_attention.measured(length, 2, ("long-short",))["long-short"] for length in (32, 64))
    assert len(shorter[0]) == 2 and min(shorter[0]) > 0
    assert shorter[1] < longer[1]
