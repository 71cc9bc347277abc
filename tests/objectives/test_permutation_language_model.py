"""Spans, orders and the memory of XLNet's pretraining, beside a plain transcription of the published procedure."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.permutation_language_model import PermutationLanguageModel, draw_order, draw_spans
from tests.systems.modules import random_params

VOCABULARY = dataclasses.replace(Vocabulary.placeholder(50), continuation=np.arange(50) % 3 == 0)
CLS, SEP = 2, 3
LENGTH, HALF = 32, 16
MODEL = XlnetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=2, d_inner=32, dropout=0.0)


def batch_of(rows: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of a text and a pair, half of them backwards; the last row fills the batch."""
    random = np.random.default_rng(seed)
    ids = random.integers(5, 50, (rows, LENGTH), np.int32)
    ids[:, [23, LENGTH - 2, LENGTH - 1]] = SEP, SEP, CLS
    segments = np.ones_like(ids)
    segments[-1] = 0
    return {
        "input_ids": ids,
        "token_type_ids": np.broadcast_to(np.repeat([0, 1, 2], [24, 7, 1]), ids.shape).astype(np.int32),
        "segment_ids": segments,
        "backwards": np.arange(rows) % 2 == 1,
        "document_starts": np.zeros(ids.shape, bool),
    }


def corrupted(objective: PermutationLanguageModel, batch: dict[str, np.ndarray], seed: int = 0) -> dict[str, Any]:
    made = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY))(batch, jax.random.key(seed))
    return jax.tree.map(np.asarray, made)


def published(begins: np.ndarray, goal: int, generator: np.random.Generator) -> np.ndarray:
    """The tokens that data_utils.py's `_sample_mask` chooses in a text, told again.

    The end of a span moves on for as long as its own first token begins a word, which it always does: by n tokens.
    """
    length, mask, place, count = len(begins), np.zeros(len(begins), bool), 0, 0
    chances = 1 / np.arange(1, 6)
    while place < length and count < goal:
        n = min(generator.choice(np.arange(1, 6), p=chances / chances.sum()), goal - count)
        before = generator.integers(n * 6)
        begin = place + before
        while begin < length and not begins[begin]:
            begin += 1
        if begin >= length:
            break
        end, words = begin + 1, 1
        while end < length:
            if begins[begin]:
                words += 1
                if words > n:
                    break
            end += 1
        if end >= length:
            break
        mask[begin:end] = True
        count += end - begin
        place = end + n * 6 - before
    while count < goal:
        place = generator.integers(length)
        count += not mask[place]
        mask[place] = True
    return mask


def test_spans_are_distributed_as_published() -> None:
    """Frequencies of each token, and of each two neighbours: within four standard deviations of the transcription."""
    random = np.random.default_rng(0)
    begins, goal, draws = random.random(48) < 0.6, 8, 20_000
    keys = jax.random.split(jax.random.key(0), draws)
    draw = jax.jit(jax.vmap(lambda key: draw_spans(key, jnp.asarray(begins), goal, longest=5, context=6)))
    found = np.asarray(draw(keys))
    assert (found.sum(axis=1) == goal).all()
    expected = np.stack([published(begins, goal, random) for _ in range(draws // 4)])
    for ours, theirs in ((found, expected), (found[:, 1:] & found[:, :-1], expected[:, 1:] & expected[:, :-1])):
        share = theirs.mean(axis=0)
        deviation = np.sqrt(share * (1 - share) * (1 / draws + 1 / len(expected))) + 1e-4
        assert (np.abs(ours.mean(axis=0) - share) < 4 * deviation).all()
    assert np.abs(found.mean(axis=0) - expected.mean(axis=0).mean()).max() > 0.05  # which places differ in


def test_parts_of_a_half_have_the_same_order() -> None:
    order = np.asarray(draw_order(jax.random.key(3), 24, 8)).reshape(3, 8)
    np.testing.assert_array_equal(np.sort(order[0]), np.arange(8))
    np.testing.assert_array_equal(order - order[0], np.repeat([[0], [8], [16]], 8, axis=1))


def test_the_order_of_a_row() -> None:
    """The predicted tokens, those that come first in their half, and the second half after the first."""
    objective = PermutationLanguageModel(predictions=6)
    batch = batch_of()
    made = corrupted(objective, batch)
    assert made["target_positions"].shape == (64, 6)
    for row in range(63):
        ids, ranks = made["input_ids"][row], made["ranks"][row]
        places = made["target_positions"][row]
        places = places[places < LENGTH]
        functional = np.isin(ids, (SEP, CLS))
        assert not functional[places].any() and len(set(places)) == len(places)
        # Of the three in a half some may fall on a mark, which is not predicted.
        assert (places < HALF).sum() == 3 and (places >= HALF).sum() <= 3
        ordered = functional.copy()
        ordered[places] = True
        for half in (slice(HALF), slice(HALF, LENGTH)):
            own, first = ranks[half], 0 if half.start is None else HALF + 1
            assert (own[~ordered[half]] == first).all()
            rest = own[ordered[half]]
            assert len(set(rest)) == len(rest) and (rest > first).all() and (rest <= first + HALF).all()
        np.testing.assert_array_equal(made["target_ids"][row, : len(places)], ids[places])
    # Each half has an order of its own: the same places of both are ordered alike as seldom as chance has it.
    first, second = made["ranks"][:-1, :HALF], made["ranks"][:-1, HALF:] - HALF - 1
    both = (first > 0) & (second > 0)
    assert both.sum() > 40 and (first == second)[both].mean() < 0.5
    weights = made["target_weights"]
    np.testing.assert_array_equal(weights[:-1], made["target_positions"][:-1] < LENGTH)
    assert not weights[-1].any()
    assert 300 < weights.sum() <= 63 * 6


def test_a_context_is_as_long_as_the_setting_says() -> None:
    """With spans of one token in contexts of one, every other token from the first on is drawn."""
    vocabulary, batch = dataclasses.replace(VOCABULARY, continuation=None), batch_of(4)
    objective = PermutationLanguageModel(predictions=6, longest_span=1, context=1)
    made = jax.jit(lambda batch, key: objective.corrupt(batch, key, vocabulary))(batch, jax.random.key(0))
    places = np.asarray(made["target_positions"])
    assert places[0].tolist() == [0, 2, 4, 16, 18, 20]
    assert places[1].tolist() == [11, 13, 15, 27, 29, LENGTH]  # backwards; [CLS] at the end is not predicted


def loss_inputs(objective: PermutationLanguageModel, rows: int) -> tuple[Any, LossInputs]:
    module = objective.module(MODEL, Execution())
    return module, LossInputs(random_params(module), carry=nn.meta.unbox(objective.initial_carry(MODEL, rows, LENGTH)))


def test_the_memory_holds_the_first_halves_of_the_rows_before() -> None:
    """And nothing from before a document that begins in them."""
    objective = PermutationLanguageModel(memory_length=24, documents="apart")
    module, given = loss_inputs(objective, 4)
    step = jax.jit(lambda carry, batch, key: objective.sums(
        module, given.replace(carry=carry), objective.corrupt(batch, key, VOCABULARY), key, training=True
    ))  # fmt: skip
    carry, masks = given.carry, []
    for number in range(3):
        batch = batch_of(4, number) | {"segment_ids": np.ones((4, LENGTH), np.int32)}
        if number == 1:
            batch["document_starts"][0, 5] = batch["document_starts"][1, 0] = True
        before, carry = carry, step(carry, batch, jax.random.key(number)).carry
        masks.append(np.asarray(carry.mask))
        # The inputs of the first layer are the words' vectors.
        words = given.params["xlnet"]["word_embeddings"]["embedding"][batch["input_ids"][:, :HALF]]
        np.testing.assert_allclose(carry.states[0, :, 8:], words, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(carry.states[:, :, :8], before.states[:, :, 16:])
    assert masks[0].sum(axis=1).tolist() == [16] * 4
    assert masks[1].sum(axis=1).tolist() == [11, 16, 24, 24]
    assert masks[2].sum(axis=1).tolist() == [24] * 4


def test_a_sixth_of_a_row_is_predicted_or_what_has_room() -> None:
    """85 of 512 tokens, as published; the halves of 16 tokens have 8, the second with three marks: at most 4 there."""
    assert PermutationLanguageModel().goals(512) == (43, 42)
    assert PermutationLanguageModel(predictions=9, permutation_size=8).goals(16) == (5, 4)
    assert PermutationLanguageModel(memory_length=0).initial_carry(MODEL, 4, LENGTH) == ()


def test_a_document_that_begins_sees_no_memory() -> None:
    batch = batch_of(4) | {"segment_ids": np.ones((4, LENGTH), np.int32)}
    batch["document_starts"][:2, 0] = True
    nats = {}
    for forget in (False, True):
        objective = PermutationLanguageModel(memory_length=24, documents="apart" if forget else "joined")
        module, given = loss_inputs(objective, 4)
        made = jax.jit(lambda objective=objective: objective.corrupt(batch, jax.random.key(0), VOCABULARY))()
        full = jax.tree.map(jnp.ones_like, given.carry)

        @jax.jit
        def loss(row: jax.Array, *, objective=objective, module=module, given=given, full=full, made=made) -> jax.Array:
            weights = made["target_weights"] * (jnp.arange(4) == row)[:, None]
            batch = made | {"target_weights": weights}
            sums = objective.sums(module, given.replace(carry=full), batch, jax.random.key(1), training=False)
            return sums.losses["permutation_language_model"]

        for row in range(4):
            nats[forget, row] = float(loss(row))
    assert all(nats[False, row] != nats[True, row] for row in range(2))
    assert all(nats[False, row] == nats[True, row] for row in range(2, 4))
