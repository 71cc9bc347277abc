"""Random choice of tokens in packed rows: ranks, sums and greedy draws by sorting.

No function compares every token with every other: a row of T tokens costs O(T log T) time and O(T) memory.
"""

import chex
import jax
import jax.numpy as jnp


def sequence_lengths(segments: jax.Array) -> jax.Array:
    """Return int [T]: the length of each token's sequence, from segments int [T] in 0..T."""
    chex.assert_rank(segments, 1)
    return jnp.zeros(len(segments) + 1, jnp.int32).at[segments].add(1)[segments]


def sums_in_groups(values: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two sums of values >= 0, int [T], in groups of adjacent equal numbers.

    The first is the cumulative sum within the group, the second the sum of the group.
    """
    chex.assert_equal_shape([values, groups])
    change = groups[1:] != groups[:-1]
    edge = jnp.ones(1, bool)
    first, last = jnp.concatenate([edge, change]), jnp.concatenate([change, edge])
    upto = jnp.cumsum(values)
    # Cumulative sums of values >= 0 never fall. So the nearest edge of the previous or next group has the extreme sum.
    before = jax.lax.cummax(jnp.where(first, upto - values, 0))
    end = jax.lax.cummin(jnp.where(last, upto, jnp.iinfo(upto.dtype).max), reverse=True)
    return upto - before, end - before


def strict_draws(key: jax.Array, length: int) -> jax.Array:
    """Return uint32 [T]: random numbers whose low bits are the position, so that no two are equal."""
    draw = jax.random.bits(key, (length,), jnp.uint32)
    return (draw << max(1, (length - 1).bit_length())) | jnp.arange(length, dtype=jnp.uint32)


def ranks(draws: jax.Array, segments: jax.Array, eligible: jax.Array) -> jax.Array:
    """Return int32 [T]: the rank, from 1, of each eligible token in its sequence, sorted by `draws`.

    draws: [T], no two equal. segments: int [T]. eligible: bool [T]; the rank of other tokens has no meaning.
    """
    chex.assert_equal_shape([draws, segments, eligible])
    places = jnp.arange(len(draws), dtype=jnp.int32)
    other, groups, _, places = jax.lax.sort((~eligible, segments, draws, places), num_keys=3)
    upto, _ = sums_in_groups(jnp.ones_like(places), jnp.where(other, -1, groups))
    return jax.lax.sort((places, upto), num_keys=1)[1]


def order_by_draws(draws: jax.Array, eligible: jax.Array) -> jax.Array:
    """Return int32 [T]: positions of eligible tokens by their draws, lowest first, then the other positions in order.

    draws: unsigned [T], no two equal. eligible: bool [T].
    """
    chex.assert_equal_shape([draws, eligible])
    last = jnp.array(jnp.iinfo(draws.dtype).max, draws.dtype)
    return jnp.argsort(jnp.where(eligible, draws, last), stable=True)


def draw_words(sizes: jax.Array, draws: jax.Array, segments: jax.Array, budget: jax.Array) -> jax.Array:
    """Take words by `draws`, lowest first, and skip each word that would exceed the rest of the sequence's budget.

    The first token of a word represents the word. All arrays are [T]: sizes int, the number of tokens of a word, 0 at
    other tokens; draws, no two equal; segments int; budget int, number of tokens to take from a sequence.

    Returns:
        bool [T], the first tokens of the words taken.
    """
    chex.assert_equal_shape([sizes, draws, segments, budget])
    places = jnp.arange(len(sizes), dtype=jnp.int32)
    segments, _, sizes, budget, places = jax.lax.sort((segments, draws, sizes, budget, places), num_keys=2)

    # A word too large for the rest of the budget is skipped permanently, because the rest only shrinks. The other words
    # are taken together up to the first that exceeds the rest. So each round takes a word or ends.
    def draw(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, waiting = state
        left = budget - sums_in_groups(taken * sizes, segments)[1]
        waiting = waiting & (sizes <= left)
        fits = waiting & (sums_in_groups(waiting * sizes, segments)[0] <= left)
        return taken | fits, waiting & ~fits

    words = sizes > 0
    taken, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), draw, (jnp.zeros_like(words), words))
    return jax.lax.sort((places, taken), num_keys=1)[1]
