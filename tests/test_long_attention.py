"""The steps that are compared by the length of their rows."""

import importlib
import sys
from pathlib import Path
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


@pytest.mark.nightly
def test_a_step_is_timed_and_its_memory_grows(long_attention) -> None:
    shorter, longer = (long_attention.measured(length, 2, ("long-short",))["long-short"] for length in (32, 64))
    assert len(shorter[0]) == 2 and min(shorter[0]) > 0
    assert shorter[1] < longer[1]


def test_reversible_layers_need_the_memory_of_their_gradients_alone(long_attention) -> None:
    """Two further layers add their gradients, and at most a twentieth of the memory of the first two, for buckets."""
    parameters, sizes = zip(*(long_attention.sizes_of("LSH", 512, layers) for layers in (2, 4)), strict=True)
    added = parameters[1] - parameters[0]
    assert added <= sizes[1] - sizes[0] <= added + 0.05 * sizes[0]


def test_the_picture_shows_the_table_of_the_page(long_attention, tmp_path: Path, monkeypatch) -> None:
    rows = long_attention.rows_of_page(long_attention.PAGE.read_text(encoding="utf-8"))
    assert {kind: len(each) for kind, each in rows.items()} == dict.fromkeys(long_attention.KINDS[:-1], 6)
    assert rows["window"][-1][0] == 16_384 and rows["window"][-1][1] < rows["dense"][-1][1]
    monkeypatch.setattr(sys, "argv", ["x.py", "--picture", str(tmp_path / "pictures" / "rows.png")])
    long_attention.main()
    assert (tmp_path / "pictures" / "rows.png").stat().st_size > 10_000
