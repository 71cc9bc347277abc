"""The decoders that are compared with the same FLOPs: their budgets, their bytes and the tokens before each."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT


@pytest.fixture
def cheap_attention(monkeypatch) -> ModuleType:
    """benchmarks/cheap_attention.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("cheap_attention")


def test_all_models_take_the_same_budget_and_read_bytes(cheap_attention) -> None:
    comparison = importlib.import_module("comparison")
    runs = {name: cheap_attention.run_of(name) for name in cheap_attention.MODELS}
    assert {run.model.width for run in runs.values()} == {128}
    assert {run.model.vocab_size for run in runs.values()} == {cheap_attention.BYTES}
    assert len({run.tokenizer for run in runs.values()}) == 1
    for run in runs.values():
        assert run.data.tokens(run.training.batch_size, run.data.sequence_length) == 1024
        found = comparison.within(run, 1e13)
        assert 0.98e13 < comparison.flops(found, found.training.steps) <= 1e13
    steps = {name: comparison.within(run, 1e13).training.steps for name, run in runs.items()}
    assert steps["GPT-2, window"] > steps["GPT-2"] and steps["Lite Transformer"] > steps["GPT-2"]


def test_a_text_is_read_in_windows_or_with_a_memory(cheap_attention, monkeypatch) -> None:
    monkeypatch.setattr(cheap_attention, "evaluate", lambda workdir, text, **settings: settings)
    for name in cheap_attention.MODELS:
        run = cheap_attention.run_of(name)
        found, context = cheap_attention.measured(Path("run"), run, Path("book.txt"))
        whole = name in ("Transformer-XL", "Adaptive-Span")
        assert found == ({} if whole else {"window": 512, "stride": 256}) | {"format": "books"}
        assert context == ("all, remembered" if whole else "256 to 511, in windows")
