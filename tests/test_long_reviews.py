"""The two readers of long reviews: what they read, and what they have in common."""

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.experiment import Tokenizer
from tests.paths import ROOT


@pytest.fixture
def reviews(monkeypatch) -> ModuleType:
    """benchmarks/long_reviews.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("long_reviews")


def test_both_models_differ_in_their_attention_and_in_what_they_read(reviews) -> None:
    tokenizer = Tokenizer(path="tokenizer")
    short, long = (
        reviews.run_of(name, length, 1, Path("data"), tokenizer, 2.0)
        for name, length in (("BERT", 128), ("Longformer", 512))
    )
    assert (short.data.sequence_length, long.data.sequence_length) == (128, 512)
    assert dataclasses.replace(long.data, sequence_length=128) == short.data
    same = "objective", "tokenizer", "optimizer", "training", "finetuning", "checkpoint"
    assert all(getattr(short, name) == getattr(long, name) for name in same)
    assert {name: getattr(long.model, name) for name in reviews.SIZES} == reviews.SIZES
    assert (long.model.attention_window, long.model.max_global_tokens) == ((reviews.WINDOW,), 1)


@pytest.mark.parametrize(("name", "length"), [("BERT", 128), ("Longformer", 512)])
def test_a_row_fits_its_model(reviews, name: str, length: int) -> None:
    module = reviews.config_of(name, length).module(Purpose.TEXT_LABELS, Execution(), 2)
    ids = jax.ShapeDtypeStruct((2, length), np.int32)
    shapes = jax.eval_shape(lambda ids: module.init_with_output(jax.random.key(0), ids)[0], ids)
    assert shapes.logits.shape == (2, 2)


def test_a_line_has_each_seed_and_the_mean(reviews) -> None:
    assert reviews.line("BERT", 2048, [0.5, 0.6, 0.55]) == "| BERT | 2,048 | 50.0 | 60.0 | 55.0 | 55.0 |"
