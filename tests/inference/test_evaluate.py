"""The answers of evaluate and fill-mask, on a model that has hardly learned."""

import math

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.inference.evaluate import evaluate
from plmjax.inference.fill_mask import fill_mask
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import read
from tests.metric_names import undocumented


def test_fills_every_mask_with_the_likeliest_tokens(small_run, reference):
    text = "the [MASK] was [MASK]"
    _, logits = reference(text)
    filled = fill_mask(small_run, text, 3)
    tokenizer = tokenizers.load(small_run / "tokenizer")
    assert len(filled) == 2
    for place, candidates in zip((2, 4), filled, strict=True):
        probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
        best = np.argsort(-probabilities)[:3]
        assert [token for token, _ in candidates] == tokenizer.tokens(best)
        np.testing.assert_allclose([share for _, share in candidates], probabilities[best], atol=1e-6)


def test_evaluates_as_the_run_itself_did(small_run):
    """The run looked at two batches only of what is evaluated here."""
    metrics = evaluate(small_run)
    assert metrics["eval/perplexity"] == pytest.approx(math.exp(metrics["eval/loss"]))
    last = [line for line in read(small_run / "metrics.jsonl") if "eval/loss" in line][-1]
    assert metrics.keys() == {name for name in last if name.startswith("eval/")} | {
        "eval/perplexity",
        "eval/unknown_tokens",
    }
    assert metrics["eval/loss"] == pytest.approx(last["eval/loss"], abs=0.3)
    for record in read(small_run / "metrics.jsonl"):
        assert not undocumented(record)


@pytest.mark.nightly
def test_evaluates_raw_text(small_run, prose, tmp_path):
    documents = prose.read_text(encoding="utf-8").split("\n\n")
    (tmp_path / "text.txt").write_text("\n\n".join(documents[:10]), encoding="utf-8")
    metrics = evaluate(small_run, tmp_path / "text.txt")
    assert not undocumented(metrics)
    assert 3 < metrics["eval/unigram_entropy"] < metrics["eval/loss"]
    assert metrics["eval/loss"] == pytest.approx(math.log(800), rel=0.02)  # after six steps, on any Python's text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, path: fill_mask(run, "no mask"), r"Expected a text with one or more \[MASK\]"),
        (lambda run, path: fill_mask(run, "[MASK] " + "film " * 200), "at most 126 tokens"),
        (lambda run, path: fill_mask(run, "[MASK]", 0), "Expected --top from 1"),
        (lambda run, path: fill_mask(run, "[MASK]", 801), "Expected --top from 1 to the 800 tokens, found 801"),
        (lambda run, path: fill_mask(path, "[MASK]"), "no finished checkpoint"),
    ],
)
def test_a_mistake_is_one_sentence(small_run, tmp_path, call, message):
    with pytest.raises(UserError, match=message) as error:
        call(small_run, tmp_path)
    assert "\n" not in str(error.value)


def test_parameters_come_as_numpy_arrays(small_run):
    params, _ = checkpoints.load_parameters(small_run)
    assert isinstance(params["bert"]["pooler"]["kernel"], np.ndarray)
