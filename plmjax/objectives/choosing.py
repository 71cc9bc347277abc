"""Choosing tokens of packed rows at random: ranks, sums and greedy draws by sorting, for rows of any length.

Nothing here compares every token with every other: a row of T tokens costs O(T log T) time and O(T) memory.
"""

import chex
import jax
import jax.numpy as jnp


def sequence_lengths(segments: jax.Array) -> jax.Array:
    """int [T]: how many tokens of the row are of the same sequence as each; segments int [T] in 0..T."""
    chex.assert_rank(segments, 1)
    return jnp.zeros(len(segments) + 1, jnp.int32).at[segments].add(1)[segments]


def sums_in_groups(values: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums of values >= 0, int [T], over equal groups that are neighbours: up to each place, and of the whole group."""
    chex.assert_equal_shape([values, groups])
    change = groups[1:] != groups[:-1]
    edge = jnp.ones(1, bool)
    first, last = jnp.concatenate([edge, change]), jnp.concatenate([change, edge])
    upto = jnp.cumsum(values)
    # Sums of values >= 0 never fall, so the nearest edge of the group before or after has the extreme one.
    before = jax.lax.cummax(jnp.where(first, upto - values, 0))
    end = jax.lax.cummin(jnp.where(last, upto, jnp.iinfo(upto.dtype).max), reverse=True)
    return upto - before, end - before


def strict_draws(key: jax.Array, length: int) -> jax.Array:
    """uint32 [T]: random numbers whose low bits are the place, so that no two are equal."""
    draw = jax.random.bits(key, (length,), jnp.uint32)
    return (draw << max(1, (length - 1).bit_length())) | jnp.arange(length, dtype=jnp.uint32)


def ranks(draws: jax.Array, segments: jax.Array, eligible: jax.Array) -> jax.Array:
    """int32 [T]: the place, from 1, of each eligible token among those of its sequence when they are sorted by `draws`.

    draws: [T], no two equal. segments: int [T]. eligible: bool [T]; of the others the rank means nothing.
    """
    chex.assert_equal_shape([draws, segments, eligible])
    places = jnp.arange(len(draws), dtype=jnp.int32)
    other, groups, _, places = jax.lax.sort((~eligible, segments, draws, places), num_keys=3)
    upto, _ = sums_in_groups(jnp.ones_like(places), jnp.where(other, -1, groups))
    return jax.lax.sort((places, upto), num_keys=1)[1]


def visited(draws: jax.Array, eligible: jax.Array) -> jax.Array:
    """int32 [T]: the places of the eligible tokens by their draws, lowest first, and then those of the others in order.

    draws: unsigned [T], no two equal. eligible: bool [T].
    """
    chex.assert_equal_shape([draws, eligible])
    last = jnp.array(jnp.iinfo(draws.dtype).max, draws.dtype)
    return jnp.argsort(jnp.where(eligible, draws, last), stable=True)


def draw_words(sizes: jax.Array, draws: jax.Array, segments: jax.Array, budget: jax.Array) -> jax.Array:
    """Takes words by `draws`, lowest first, and skips each that would exceed what is left of the sequence's budget.

    A word is known by its first token. All [T]: sizes int, the tokens of a word, 0 where none begins; draws, no two
    equal; segments int; budget int, tokens to take of a sequence.

    Returns:
        bool [T], the first tokens of the words taken.
    """
    chex.assert_equal_shape([sizes, draws, segments, budget])
    places = jnp.arange(len(sizes), dtype=jnp.int32)
    segments, _, sizes, budget, places = jax.lax.sort((segments, draws, sizes, budget, places), num_keys=2)

    # All words too large for what is left are skipped for good, because it only shrinks; of the others, those up to the
    # first that exceeds it are taken together. So each round takes a word or ends.
    def draw(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, waiting = state
        left = budget - sums_in_groups(taken * sizes, segments)[1]
        waiting = waiting & (sizes <= left)
        fits = waiting & (sums_in_groups(waiting * sizes, segments)[0] <= left)
        return taken | fits, waiting & ~fits

    words = sizes > 0
    taken, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), draw, (jnp.zeros_like(words), words))
    return jax.lax.sort((places, taken), num_keys=1)[1]
