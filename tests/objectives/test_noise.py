"""BART's noise: each function against the released procedure, given the same random numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.objectives import noise
from tests.objectives.released_noise import covering, hidden, inserted, permuted, rotated

ROWS, ROOM = 200, 24
BEGIN, END, STOP, MASK = 0, 2, 4, 99


def draws(random: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """Random numbers of which no two of a row are equal."""
    return np.argsort(random.random((rows, count)), axis=1).astype(np.uint32)


def texts(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 2 to 24 tokens, a fifth of them full stops, often several on end; and their lengths."""
    lengths = random.integers(2, ROOM + 1, ROWS)
    ids = random.integers(5, 90, (ROWS, ROOM))
    ids[random.random(ids.shape) < 0.2] = STOP
    ids[:, 0] = BEGIN
    ids[np.arange(ROWS), lengths - 1] = END
    return np.where(np.arange(ROOM) < lengths[:, None], ids, 1).astype(np.int32), lengths


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_sentences_change_places_as_released(share):
    random = np.random.default_rng(0)
    ids, lengths = texts(random)
    choice, order = draws(random, ROWS, ROOM), draws(random, ROWS, ROOM)

    @jax.jit
    @jax.vmap
    def found(ids, length, choice, order):
        ends = noise.sentence_ends(ids == STOP, length)
        moved = jnp.ceil(share * jnp.sum(ends)).astype(jnp.int32)
        return noise.rearranged(ids, ends, noise.sentence_order(choice, order, jnp.sum(ends), moved)), jnp.sum(ends)

    result, counts = jax.device_get(found(ids, lengths, choice, order))
    assert counts.max() > 3 and (result != ids).any()
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        stops = ids[row][:length] == STOP
        stops[-2] = True  # the released code counts the last token of a text as a full stop
        assert count == np.sum(stops[1:] & ~stops[:-1])
        moved = math.ceil(share * count)
        chosen = np.argsort(choice[row][:count])[:moved].tolist()
        expected = permuted(ids[row][:length].tolist(), STOP, chosen, np.argsort(order[row][:moved]).tolist())
        assert result[row].tolist() == expected + ids[row][length:].tolist()


@pytest.mark.parametrize("replacement", ["one", "each", "none"])
def test_spans_of_words_are_hidden_as_released(replacement):
    """Spans overlap, reach over the ends of words, and end with the sequences that a row holds."""
    random, spans = np.random.default_rng(1), 4
    ids, lengths = texts(random)
    place = np.arange(ROOM)
    inside = (place > 0) & (place < lengths[:, None] - 1) & (random.random(ids.shape) > 0.1)
    begins = ~np.concatenate([np.zeros((ROWS, 1), bool), inside[:, :-1]], axis=1)
    starts = inside & (begins | (random.random(ids.shape) < 0.6))
    words = starts.sum(axis=1)
    sizes = np.where(np.arange(spans) < words[:, None], random.integers(1, 6, (ROWS, spans)), 0)
    sizes[::3, 2:] = 0
    order, tokens = draws(random, ROWS, ROOM), random.integers(100, 200, ids.shape)
    strange = random.random((ROWS, spans)) < 0.5

    @jax.jit
    @jax.vmap
    def found(ids, length, starts, inside, order, sizes, strange, tokens):
        of_words, numbers = noise.spans_of_words(order, jnp.sum(starts), sizes)
        begun, rest, owner = noise.covered(starts, inside, of_words)
        masks = jnp.where(strange[numbers[owner]], tokens, MASK)
        return noise.hidden(ids, length, begun, rest, masks, replacement)

    result, left = jax.device_get(found(ids, lengths, starts, inside, order, sizes, strange, tokens))
    assert (left < lengths).any() == (replacement != "each")
    for row, length in enumerate(lengths):
        taken = np.flatnonzero(sizes[row])
        indices = np.flatnonzero(starts[row])[np.argsort(order[row][: words[row]])][: len(taken)]
        of_row = ids[row][:length], starts[row], inside[row], indices, sizes[row][taken], strange[row][taken]
        expected = hidden(*of_row, tokens[row], MASK, replacement)
        assert left[row] == len(expected) and result[row][: left[row]].tolist() == expected
        if replacement != "each":
            assert (result[row][left[row] :] == 0).all()


def test_spans_are_taken_until_they_cover_the_budget():
    random = np.random.default_rng(2)
    lengths, budgets = random.poisson(2.0, (ROWS, 30)), random.integers(0, 12, ROWS)
    filled, empty = jax.device_get(jax.jit(jax.vmap(noise.within_budget))(lengths, budgets))
    for row, budget in enumerate(budgets):
        taken = covering(lengths[row].tolist(), budget)
        assert sum(taken) == budget
        assert filled[row][filled[row] > 0].tolist() == [one for one in taken if one] and empty[row] == taken.count(0)
        assert filled[row].tolist() == sorted(filled[row].tolist(), key=bool, reverse=True)


def test_lengths_of_spans_are_those_of_a_poisson_distribution():
    for mean in (0.5, 3.0, 3.5, 16.0):
        shares = noise.poisson_shares(mean)
        assert shares.sum() == pytest.approx(1) and shares @ np.arange(len(shares)) == pytest.approx(mean, rel=1e-5)
        assert shares[0] == pytest.approx(math.exp(-mean), rel=1e-5)
        assert shares[2] / shares[1] == pytest.approx(mean / 2)
    assert len(noise.poisson_shares(3.5)) == 19


def test_tokens_are_inserted_anywhere_between_the_ends():
    random, room = np.random.default_rng(3), ROOM + 5
    ids, lengths = texts(random)
    counts, order = random.integers(0, 6, ROWS), draws(random, ROWS, room)
    new = random.integers(100, 200, (ROWS, room))
    result, left = jax.device_get(jax.jit(jax.vmap(noise.with_inserted))(ids, lengths, order, counts, new))
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        expected = inserted(ids[row][:length].tolist(), order[row], new[row][:count].tolist())
        assert left[row] == length + count
        assert result[row].tolist() == expected + [0] * (room - length - count)
        assert result[row][0] == BEGIN and result[row][length + count - 1] == END


def test_a_rotated_text_goes_round():
    random = np.random.default_rng(4)
    ids, lengths = texts(random)
    offsets = random.integers(1, np.maximum(lengths, 2))
    result = np.asarray(jax.jit(jax.vmap(noise.rotated))(ids, lengths, offsets))
    assert (result != ids).any()
    for row, (length, offset) in enumerate(zip(lengths, offsets, strict=True)):
        expected = rotated(ids[row][:length].tolist(), offset)
        assert result[row].tolist() == expected + ids[row][length:].tolist()
