"""Which tokens may come next: pure functions of scores, float32 [R V], where a token that may not has -infinity."""

import dataclasses

import jax
import jax.numpy as jnp

from plmjax.generation.written import Written


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What every strategy keeps to.

    tokens: those of the tokenizer, the first of the model's vocabulary; the rest of a padded table is never written.
    stop: tokens that end a text.
    no_repeat_ngram_size: tokens of the n-grams that no text, its prompt included, has twice; 0: any may come again.
    first: token that every text begins with, at no cost, whatever its scores; None: none is.
    """

    tokens: int
    stop: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    first: int | None = None

    def __call__(self, scores: jax.Array, written: Written, minimum: jax.Array) -> jax.Array:
        """[R V] -> [R V]; minimum: int32 scalar, tokens that a text has at least before it may stop."""
        allowed = jnp.arange(scores.shape[-1]) < self.tokens
        if self.stop:
            stops = jnp.isin(jnp.arange(scores.shape[-1]), jnp.array(self.stop))
            allowed &= ~stops | (written.count >= minimum)
        scores = jnp.where(allowed, scores, -jnp.inf)
        if self.no_repeat_ngram_size:
            scores = without_repeats(scores, written, self.no_repeat_ngram_size)
        if self.first is not None:
            only = jnp.where(jnp.arange(scores.shape[-1]) == self.first, 0.0, -jnp.inf)
            scores = jnp.where(written.count == 0, only, scores)
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
