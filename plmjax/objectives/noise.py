"""BART's noise (Lewis et al. 2020, section 2.2; fairseq 0.12.2, data/denoising_dataset.py): five ways to corrupt a row.

A row is [N]: <s>, a text, </s>, padding; `length` counts its tokens, including both ends. Further </s> may separate
sequences inside it. Every function takes its random numbers, so the same numbers always corrupt a row in the same way.
"""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.objectives.choosing import order_by_draws


def poisson_probabilities(mean: float) -> np.ndarray:
    """Return the probabilities of span lengths 0, 1, ..., K - 1, float64 [K]: a Poisson distribution, normalized.

    As in the released code, the last one is the first below 1e-7.

    mean: above 0 and up to 16. For such a mean, the probability of length 0 is above 1e-7.
    """
    probabilities = []
    while not probabilities or probabilities[-1] >= 1e-7:
        probabilities.append(math.exp(len(probabilities) * math.log(mean) - mean - math.lgamma(len(probabilities) + 1)))
    return np.array(probabilities) / np.sum(probabilities)


# ---------------------------------------------------------------------------------------------------- sentences


def sentence_ends(stops: jax.Array, length: jax.Array) -> jax.Array:
    """Return bool [N]: the last tokens of sentences, from bool [N], the full stops.

    The last token of the text counts as a full stop. The first of several adjacent full stops ends the sentence; the
    others belong to no sentence, or start the next one.
    """
    place = jnp.arange(len(stops))
    stops = (stops | (place == length - 2)) & (place > 0) & (place < length - 1)
    return stops & ~jnp.concatenate([jnp.zeros(1, bool), stops[:-1]])


def sentence_order(choice: jax.Array, order: jax.Array, sentences: jax.Array, moved: jax.Array) -> jax.Array:
    """Return int32 [N]: the index of the first, second, ... sentence after `moved` random ones are permuted.

    choice, order: [N], random numbers of which no two are equal. sentences, moved: int scalars.
    """
    place = jnp.arange(len(choice))
    chosen = order_by_draws(choice, place < sentences)  # Only the first `moved` of these change places.
    among = order_by_draws(order, place < moved)
    return place.at[chosen].set(chosen[among])


def permute_sentences(ids: jax.Array, ends: jax.Array, order: jax.Array) -> jax.Array:
    """Return the row with its sentences in another order. Tokens outside sentences stay.

    ends: bool [N]. order: int [N].
    """
    chex.assert_equal_shape([ids, ends, order])
    place = jnp.arange(len(ids))
    sentence = jnp.cumsum(ends) - ends
    inside = (place > 0) & (sentence < jnp.sum(ends))
    sizes = jnp.zeros_like(place).at[sentence].add(inside)
    old = 1 + jnp.cumsum(sizes) - sizes
    new = jnp.zeros_like(place).at[order].set(1 + jnp.cumsum(sizes[order]) - sizes[order])
    return ids.at[jnp.where(inside, place - old[sentence] + new[sentence], place)].set(ids)


# -------------------------------------------------------------------------------------------------------- spans


def within_budget(lengths: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return span lengths that add up to the budget, then 0, and the number of empty spans.

    lengths: int [K]. They are taken in order, without empty ones, until they cover the budget; the last is shortened.
    """
    before = jnp.cumsum(lengths) - lengths
    taken = before < budget
    lengths = jnp.where(taken, jnp.minimum(lengths, budget - before), 0)
    filled = lengths > 0
    places = jnp.where(filled, jnp.cumsum(filled) - 1, len(lengths))
    return jnp.zeros_like(lengths).at[places].set(lengths, mode="drop"), jnp.sum(taken & ~filled)


def spans_of_words(order: jax.Array, words: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Assign spans to words at random. Return int [N] twice: each word's span length, 0 for none, and span number.

    order: [N], random numbers of which no two are equal. words: int scalar, the number of words. lengths: int [K], as
    from `within_budget`, with at most as many above 0 as there are words.
    """
    place = jnp.arange(len(order))
    chosen = order_by_draws(order, place < words)[: len(lengths)]
    lengths = lengths[: len(chosen)]
    nothing = jnp.zeros_like(place)
    return nothing.at[chosen].set(lengths), nothing.at[chosen].set(jnp.arange(len(chosen)))


def cover_spans(starts: jax.Array, inside: jax.Array, spans: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the tokens in spans of whole words. Spans may overlap but never leave a sequence.

    Args:
        starts: bool [N], the first tokens of words.
        inside: bool [N], the tokens that may be covered; others end a sequence.
        spans: int [N], number of words of the span that starts with each word.

    Returns:
        bool [N], the first tokens of spans; bool [N], the other tokens of spans; int [N], index of the first word whose
        span covers the token.
    """
    words = jnp.arange(len(starts))
    word = jnp.maximum(jnp.cumsum(starts) - 1, 0)
    sequence = jnp.cumsum(~inside)
    last = jnp.zeros(len(starts) + 1, jnp.int32).at[sequence].max(jnp.where(inside, word + 1, 0))
    limit = jnp.zeros_like(words).at[word].max(jnp.where(inside, last[sequence], 0))
    ends = jax.lax.cummax(jnp.where(spans > 0, jnp.minimum(words + spans, limit), 0))
    from_before = jnp.concatenate([jnp.zeros(1, bool), ends[:-1] > words[1:]])
    span_starts = inside & starts & (spans > 0)[word] & ~from_before[word]
    rest = inside & (from_before[word] | (~starts & (spans > 0)[word]))
    return span_starts, rest, jnp.minimum(jnp.searchsorted(ends, word, side="right"), len(words) - 1)


def replace_spans(
    ids: jax.Array, length: jax.Array, span_starts: jax.Array, *, rest: jax.Array, masks: jax.Array, replacement: str
) -> tuple[jax.Array, jax.Array]:
    """Return the row with its spans replaced, and its length.

    span_starts, rest: as from `cover_spans`. masks: int [N], possible replacement of each token.
    replacement: "one" for a mask at the start of each span, "each" for a mask in place of every token, "none" for no
    mask.
    """
    masked = {"one": span_starts, "each": span_starts | rest, "none": jnp.zeros_like(span_starts)}[replacement]
    return delete_tokens(jnp.where(masked, masks, ids), length, (span_starts | rest) & ~masked)


# ------------------------------------------------------------------------------------- deletion, insertion, rotation


def delete_tokens(ids: jax.Array, length: jax.Array, left_out: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the row without the tokens `left_out`, bool [N], and its length; zeros follow it."""
    kept = ~left_out & (jnp.arange(len(ids)) < length)
    places = jnp.where(kept, jnp.cumsum(kept) - 1, len(ids))
    return jnp.zeros_like(ids).at[places].set(ids, mode="drop"), jnp.sum(kept)


def insert_tokens(
    ids: jax.Array, length: jax.Array, draws: jax.Array, *, count: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the row [R] with `count` further tokens at random positions between its ends, and its length.

    ids: int [N]. draws: [R], random numbers of which no two are equal, R >= length + count. noise: int [R], tokens to
    insert: the first at the lowest draw, and so on.
    """
    place = jnp.arange(len(draws))
    places = order_by_draws(draws, (place > 0) & (place < length + count - 1))
    ranks = jnp.zeros_like(place).at[places].set(place)
    new = ranks < count
    kept = jnp.take(ids, place - jnp.cumsum(new), mode="clip")
    return jnp.where(place < length + count, jnp.where(new, noise[ranks], kept), 0), length + count


def rotate(ids: jax.Array, length: jax.Array, offset: jax.Array) -> jax.Array:
    """Return the row rotated: its text starts with the token at `offset`, an int scalar from 1 to length - 1."""
    place = jnp.arange(len(ids))
    text = jnp.maximum(length - 2, 1)
    source = 1 + (place - 1 + offset - 1) % text
    return jnp.where((place > 0) & (place < length - 1), ids[source], ids)
