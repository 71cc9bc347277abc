"""Which tokens may come next: pure functions of scores, float32 [R V], where a token that may not has -infinity."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.generation.written import Written


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What every strategy keeps to. Applied in the order of transformers: what is forced comes last.

    tokens: those of the tokenizer, the first of the model's vocabulary; the rest of a padded table is never written.
    stop: tokens that end a text.
    no_repeat_ngram_size: tokens of the n-grams that no text, its prompt included, has twice; 0: any may come again.
    repetition_penalty: see `repeats_penalized`.
    bad_words: sequences of tokens that are never written.
    first: token that follows a prompt of one token, at no cost, whatever its scores; None: none is.
    last: token that a text of the greatest length ends with, at no cost, whatever its scores; None: none is.
    renormalize: whether scores are logarithms of probabilities again after all that.
    """

    tokens: int
    stop: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    first: int | None = None
    last: int | None = None
    renormalize: bool = False

    def __call__(
        self, scores: jax.Array, written: Written, min_new_tokens: jax.Array, max_new_tokens: jax.Array
    ) -> jax.Array:
        """[R V] -> [R V].

        min_new_tokens, max_new_tokens: int32 [R], tokens of a text before which it may not stop, and at most.
        """
        if self.repetition_penalty != 1:
            scores = repeats_penalized(scores, written, self.repetition_penalty)
        allowed = jnp.arange(scores.shape[-1]) < self.tokens
        if self.stop:
            stops = jnp.isin(jnp.arange(scores.shape[-1]), jnp.array(self.stop))
            allowed &= ~stops | (written.count >= min_new_tokens)[:, None]
        scores = jnp.where(allowed, scores, -jnp.inf)
        if self.no_repeat_ngram_size:
            scores = without_repeats(scores, written, self.no_repeat_ngram_size)
        if self.bad_words:
            scores = without_words(scores, written, self.bad_words)
        if self.first is not None:
            scores = forced(scores, self.first, written.end - written.first == 1)
        if self.last is not None:
            scores = forced(scores, self.last, written.count == max_new_tokens - 1)
        if self.renormalize:
            scores = jax.nn.log_softmax(scores, axis=-1)
        return scores

    def stops(self, tokens: jax.Array) -> jax.Array:
        """int [...] -> bool [...], whether a text ends with this token."""
        return jnp.isin(tokens, jnp.array(self.stop, jnp.int32)) if self.stop else jnp.zeros(tokens.shape, bool)


def without_repeats(scores: jax.Array, written: Written, size: int) -> jax.Array:
    """Without the tokens that would end an n-gram of `size` tokens which the row already has.

    Deviation: what fills a row up before its prompt is no part of any n-gram; in transformers it is.
    """
    text, end = written.text, written.end
    places = text.shape[1] - size + 1
    if places < 1:
        return scores
    begins = jnp.arange(places)
    # An n-gram that ends with the token to come begins size - 1 tokens before it.
    repeated = (begins >= written.first[:, None]) & (begins + size <= end) & (end - size + 1 >= written.first[:, None])
    for offset in range(size - 1):
        last = jax.lax.dynamic_slice_in_dim(text, end - size + 1 + offset, 1, axis=1)
        repeated &= text[:, offset : offset + places] == last
    rows = jnp.arange(text.shape[0])[:, None]
    ends = text[:, size - 1 :]
    banned = jnp.zeros(scores.shape, bool).at[rows, ends].max(repeated)
    return jnp.where(banned, -jnp.inf, scores)


def repeats_penalized(scores: jax.Array, written: Written, penalty: float) -> jax.Array:
    """Scores of the tokens that a row has, divided by `penalty` if positive and multiplied if negative.

    Keskar et al. (arXiv 1909.05858), section 4.1, where every score is divided; transformers multiplies negative ones,
    so that a penalty above 1 makes repeats less likely whatever the sign.
    """
    places = jnp.arange(written.text.shape[1])
    there = (places >= written.first[:, None]) & (places < written.end)
    rows = jnp.arange(len(written.text))[:, None]
    seen = jnp.zeros(scores.shape, bool).at[rows, written.text].max(there)
    return jnp.where(seen, jnp.where(scores < 0, scores * penalty, scores / penalty), scores)


def without_words(scores: jax.Array, written: Written, words: Sequence[tuple[int, ...]]) -> jax.Array:
    """Without the tokens that would complete one of the sequences of tokens."""
    banned = jnp.zeros(scores.shape, bool)
    for before in sorted({len(word) - 1 for word in words}):
        if before >= written.text.shape[1]:  # no row ever has so many tokens before the last one
            continue
        alike = np.array([word for word in words if len(word) == before + 1])
        begin = written.end - before
        tail = jax.lax.dynamic_slice_in_dim(written.text, begin, before, axis=1)
        complete = jnp.all(tail[:, None] == alike[:, :-1], axis=-1) & (begin >= written.first)[:, None]  # [R words]
        banned = banned.at[:, alike[:, -1]].max(complete)
    return jnp.where(banned, -jnp.inf, scores)


def forced(scores: jax.Array, token: int, rows: jax.Array) -> jax.Array:
    """With 0 for a token and -infinity for all others, in rows where a bool [R] is true."""
    only = jnp.where(jnp.arange(scores.shape[-1]) == token, 0.0, -jnp.inf)
    return jnp.where(rows[:, None], only, scores)


def hottest(scores: jax.Array, count: int) -> jax.Array:
    """The `count` best alone, and those that are as good as the last of them (top-k; Fan et al., arXiv 1805.04833)."""
    least = jax.lax.top_k(scores, min(count, scores.shape[-1]))[0][..., -1:]
    return jnp.where(scores < least, -jnp.inf, scores)


def nucleus(scores: jax.Array, mass: float) -> jax.Array:
    """The fewest best whose probabilities reach `mass` (top-p; Holtzman et al., arXiv 1904.09751), at least one."""
    order = jnp.argsort(-scores, axis=-1, stable=True)
    falling = jnp.take_along_axis(scores, order, axis=-1)
    before = jnp.cumsum(jax.nn.softmax(falling, axis=-1), axis=-1) - jax.nn.softmax(falling, axis=-1)
    kept = (before < mass).at[..., 0].set(True)
    rank = jnp.argsort(order, axis=-1)
    return jnp.where(jnp.take_along_axis(kept, rank, axis=-1), scores, -jnp.inf)
