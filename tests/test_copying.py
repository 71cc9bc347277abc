"""Reformer copies a word by hashed attention, better with more rounds."""

import importlib

import pytest

from tests.paths import ROOT


# 500 steps of training take 30 s: pytest -m slow tests/test_copying.py
@pytest.mark.slow
def test_a_word_is_copied_with_enough_rounds_of_hashing(monkeypatch) -> None:
    """trax's length and symbols."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    copying = importlib.import_module("copying")
    found = copying.accuracies(copying.trained(4), 4)
    assert found[1] < found[2] < found[8] and found[8] > 0.99
