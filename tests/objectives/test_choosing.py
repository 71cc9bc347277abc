"""Choices by sorting against plain loops that take token after token, for the same draws; rows of 65,536 tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.objectives import electra
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Objective
from plmjax.objectives.roberta import RobertaPretraining
from tests.objectives.masking import VOCABULARY, batch_of, chosen, words_of
from tests.objectives.test_albert_pretraining import published as published_runs


def numbers(key: jax.Array, length: int) -> np.ndarray:
    """The keys by which a row's tokens are sorted: random bits, the position in the lowest of them."""
    bits = np.asarray(jax.random.bits(key, (length,), jnp.uint32))
    return (bits << np.uint32(max(1, (length - 1).bit_length()))) | np.arange(length, dtype=np.uint32)


def taken_in_order(words: list[list[int]], budget: int) -> set[int]:
    """The released loop (google-research/bert create_masked_lm_predictions): what does not fit is skipped."""
    taken: set[int] = set()
    for word in words:
        if len(taken) + len(word) <= budget:
            taken |= set(word)
    return taken


def chosen_by_loops(objective: MaskedLanguageModel, key: jax.Array, ids: np.ndarray, segments: np.ndarray) -> set[int]:
    """The tokens to predict of one row, sequence after sequence and word after word."""
    length, found = len(ids), set()
    runs = isinstance(objective, AlbertPretraining)
    visit, run, size = jax.random.split(key, 3) if runs else (key, key, jax.random.fold_in(key, 1))
    if runs:
        order = np.asarray(jax.random.permutation(visit, length))
        shares = -jnp.log(jnp.arange(1, objective.ngram + 1))
        drawn = 1 + np.asarray(jax.random.categorical(run, shares, shape=(length,)))
    else:
        order = numbers(visit, length)
    lengths = np.bincount(segments, minlength=length + 1)[segments]
    budgets = np.asarray(objective._budget(size, jnp.array(lengths), jnp.array(segments)))
    for segment in range(1, segments.max() + 1):
        here = np.flatnonzero(segments == segment)
        words = [[here[t] for t in word] for word in words_of(ids[here])]
        if not objective.whole_word:
            words = [[t] for word in words for t in word]
        budget = min(budgets[here[0]], objective.max_predictions or length)
        first = [word[0] for word in words]
        if runs:
            found |= published_runs(words, budget, np.argsort(order[first]).tolist(), drawn[first].tolist())
        else:
            found |= taken_in_order([words[place] for place in np.argsort(order[first])], budget)
    return found


ROWS = [[64], [3], [10, 30, 20], [32, 32], [5, 5, 5], [20], [7, 3, 9, 4, 12, 5, 6, 8]]


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLanguageModel(),
        MaskedLanguageModel(rate=0.6, max_predictions=9),
        MaskedLanguageModel(whole_word=True),
        MaskedLanguageModel(whole_word=True, rate=0.4),
        MaskedLanguageModel(whole_word=True, rate=0.4, max_predictions=7),
        RobertaPretraining(),
        RobertaPretraining(whole_word=True, rate=0.3),
        AlbertPretraining(),
        AlbertPretraining(max_predictions=0, rate=0.5, ngram=5),
        AlbertPretraining(whole_word=False, rate=0.9, max_predictions=0),
        AlbertPretraining(ngram=1, rate=0.3),
    ],
    ids=repr,
)
def test_choices_are_those_of_plain_loops(objective: MaskedLanguageModel) -> None:
    batch = batch_of(ROWS * 4, 64)
    choose = jax.jit(jax.vmap(functools.partial(objective._choose, vocabulary=VOCABULARY)))
    keys = jax.random.split(jax.random.key(3), len(batch["input_ids"]))
    found = np.asarray(choose(keys, batch["input_ids"], batch["segment_ids"]))
    for row, key, ids, segments in zip(found, keys, batch["input_ids"], batch["segment_ids"], strict=True):
        assert set(np.flatnonzero(row)) == chosen_by_loops(objective, key, ids, segments)
    assert found.any()


LONG = 65_536


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLanguageModel(),
        MaskedLanguageModel(whole_word=True),
        RobertaPretraining(),
        pytest.param(AlbertPretraining(max_predictions=0), marks=pytest.mark.nightly),
        ElectraPretraining(),
    ],
    ids=lambda objective: type(objective).__name__ + "-words" * getattr(objective, "whole_word", False),
)
def test_a_row_of_65536_tokens_is_masked_in_memory_that_grows_with_its_length(objective: Objective) -> None:
    batch = batch_of([[LONG - 30_000, 20_000, 10_000]], LONG)
    mask = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY))
    compiled = mask.lower(batch, jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 400 * LONG  # one bit a pair of tokens would be 8,192 * LONG
    masked = jax.tree.map(np.asarray, compiled(batch, jax.random.key(0)))
    assert masked["masked_weights"].sum() == pytest.approx(0.15 * LONG, rel=1e-3)
    if isinstance(objective, ElectraPretraining):
        draw = jax.jit(electra.replaced)
        logits = jnp.zeros((*masked["masked_positions"].shape, 8))
        assert draw.lower(masked, logits).compile().memory_analysis().temp_size_in_bytes < 400 * LONG
        changed = np.asarray(draw(masked, logits)) != batch["input_ids"]
        assert changed.sum() == pytest.approx(
            len(set(masked["masked_positions"][masked["masked_weights"] > 0])), rel=0.01
        )
    else:
        assert chosen(masked).sum() == masked["masked_weights"].sum()
