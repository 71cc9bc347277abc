"""The two readers of long reviews: what they read, and what they have in common."""

import dataclasses
import gzip
import importlib
import json
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.experiment import Start, Tokenizer
from plmjax.runs import checks
from tests.paths import ROOT


@pytest.fixture
def reviews(monkeypatch) -> ModuleType:
    """benchmarks/long_reviews.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("long_reviews")


def test_the_pretraining_ends_with_rows_of_the_length_that_is_read(reviews) -> None:
    run = reviews.pretraining(Path("reviews.jsonl"), 256, Tokenizer(path="tokenizer"), 200)
    found = run.resolved_phases
    assert [(phase.sequence_length, phase.batch_size, phase.steps) for phase in found] == [
        (32, 32, 100), (128, 8, 60), (256, 4, 40)
    ]  # fmt: skip
    assert run.model.longest == 256 and run.data.input == ("reviews.jsonl",)
    checks.pretraining(run, 1)


def test_both_models_differ_in_their_start_and_in_the_length_that_they_read(reviews) -> None:
    short, long = (
        reviews.finetuning(name, length, 1, Path("data"), 2.0)
        for name, length in zip(reviews.NAMES, (128, 512), strict=True)
    )
    assert (short.data.sequence_length, long.data.sequence_length) == (128, 512)
    assert (short.start, type(long.start).__name__) == (Start(), "LongformerFromRoberta")
    assert dataclasses.replace(long.data, sequence_length=128) == short.data
    assert dataclasses.replace(long, data=short.data, start=short.start) == short
    assert short.training.seed == 1


@pytest.mark.parametrize("name", ["RoBERTa", "Longformer"])
def test_a_row_fits_its_model(reviews, name: str) -> None:
    """The Longformer's rows are four times those of the RoBERTa that it begins as."""
    roberta = reviews.pretraining(Path("reviews.jsonl"), 128, Tokenizer(path="tokenizer"), 200).model
    length = 512 if name == "Longformer" else 128
    model = reviews.finetuning(name, length, 0, Path("data"), 2.0).start.model(roberta)
    ids = jax.ShapeDtypeStruct((2, length), np.int32)
    module = model.module(Purpose.TEXT_LABELS, Execution(), 2)
    shapes = jax.eval_shape(lambda ids: module.init_with_output(jax.random.key(0), ids)[0], ids)
    assert shapes.logits.shape == (2, 2)
    assert (model.longest, model.width) == (length, roberta.width)


def test_tokens_of_a_review_are_counted(reviews, tmp_path: Path) -> None:
    texts = ["a film", "a fine film that nobody follows", "film"]
    tokenizers.train("byte-bpe", 270, texts, tmp_path / "tokenizer")
    rows = [json.dumps({"text": text, "label": "pos"}) for text in texts]
    (tmp_path / "dev.jsonl.gz").write_bytes(gzip.compress("\n".join([*rows, ""]).encode()))
    counts = reviews.token_counts(tmp_path, Tokenizer(path=str(tmp_path / "tokenizer")))
    assert counts.tolist() == [len(ids) for ids in tokenizers.load(str(tmp_path / "tokenizer")).encode_batch(texts)]


def test_a_line_has_each_seed_and_the_mean(reviews) -> None:
    assert reviews.line("RoBERTa", 2048, [0.5, 0.6, 0.55]) == "| RoBERTa | 2,048 | 50.0 | 60.0 | 55.0 | 55.0 |"
