"""Constraints on the next token: pure functions of scores, float32 [R V]. A forbidden token has the score -infinity."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.generation.token_buffer import TokenBuffer


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints that every strategy applies, in the order of transformers: forced tokens come last.

    tokens: size of the tokenizer's vocabulary. Larger ids only pad the model's embedding table and are never generated.
    stop: tokens that end a text.
    no_repeat_ngram_size: size of n-grams that may occur only once in a prompt with its text; 0: no limit.
    repetition_penalty: see `penalize_repeats`.
    bad_words: sequences of tokens that are never generated.
    first: token that is forced, with log probability 0, after a prompt of one token; None: no token is forced.
    last: token that is forced, with log probability 0, as the last one of a text of maximum length; None: no token.
    renormalize: if true, normalize scores to log probabilities again after all constraints.
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
        self, scores: jax.Array, buffer: TokenBuffer, min_new_tokens: jax.Array, max_new_tokens: jax.Array
    ) -> jax.Array:
        """Apply the constraints, [R V] -> [R V].

        min_new_tokens, max_new_tokens: int32 [R], minimum and maximum number of tokens of a text.
        """
        if self.repetition_penalty != 1:
            scores = penalize_repeats(scores, buffer, self.repetition_penalty)
        allowed = jnp.arange(scores.shape[-1]) < self.tokens
        if self.stop:
            stops = jnp.isin(jnp.arange(scores.shape[-1]), jnp.array(self.stop))
            allowed &= ~stops | (buffer.count >= min_new_tokens)[:, None]
        scores = jnp.where(allowed, scores, -jnp.inf)
        if self.no_repeat_ngram_size:
            scores = forbid_repeated_ngrams(scores, buffer, self.no_repeat_ngram_size)
        if self.bad_words:
            scores = forbid_words(scores, buffer, self.bad_words)
        if self.first is not None:
            scores = force_token(scores, self.first, buffer.end - buffer.first == 1)
        if self.last is not None:
            scores = force_token(scores, self.last, buffer.count == max_new_tokens - 1)
        if self.renormalize:
            scores = jax.nn.log_softmax(scores, axis=-1)
        return scores

    def stops(self, tokens: jax.Array) -> jax.Array:
        """Return true for each token that ends a text, int [...] -> bool [...]."""
        return jnp.isin(tokens, jnp.array(self.stop, jnp.int32)) if self.stop else jnp.zeros(tokens.shape, bool)


def forbid_repeated_ngrams(scores: jax.Array, buffer: TokenBuffer, size: int) -> jax.Array:
    """Forbid the tokens that would complete an n-gram of `size` tokens which the row already has.

    Deviation: padding before a prompt belongs to no n-gram; in transformers it does.
    """
    text, end = buffer.text, buffer.end
    places = text.shape[1] - size + 1
    if places < 1:
        return scores
    begins = jnp.arange(places)
    # An n-gram that ends with the next token begins size - 1 tokens before it.
    repeated = (begins >= buffer.first[:, None]) & (begins + size <= end) & (end - size + 1 >= buffer.first[:, None])
    for offset in range(size - 1):
        last = jax.lax.dynamic_slice_in_dim(text, end - size + 1 + offset, 1, axis=1)
        repeated &= text[:, offset : offset + places] == last
    rows = jnp.arange(text.shape[0])[:, None]
    ends = text[:, size - 1 :]
    banned = jnp.zeros(scores.shape, bool).at[rows, ends].max(repeated)
    return jnp.where(banned, -jnp.inf, scores)


def penalize_repeats(scores: jax.Array, buffer: TokenBuffer, penalty: float) -> jax.Array:
    """Penalize tokens that a row already has: divide positive scores by `penalty`, multiply negative ones.

    Keskar et al. (arXiv 1909.05858), section 4.1, divide every score. transformers multiplies negative scores. So a
    penalty above 1 makes repeats less likely for either sign.
    """
    places = jnp.arange(buffer.text.shape[1])
    there = (places >= buffer.first[:, None]) & (places < buffer.end)
    rows = jnp.arange(len(buffer.text))[:, None]
    seen = jnp.zeros(scores.shape, bool).at[rows, buffer.text].max(there)
    return jnp.where(seen, jnp.where(scores < 0, scores * penalty, scores / penalty), scores)


def forbid_words(scores: jax.Array, buffer: TokenBuffer, words: Sequence[tuple[int, ...]]) -> jax.Array:
    """Forbid the tokens that would complete one of `words`, each a sequence of tokens."""
    banned = jnp.zeros(scores.shape, bool)
    for before in sorted({len(word) - 1 for word in words}):
        if before >= buffer.text.shape[1]:  # no row ever has so many tokens before the last one
            continue
        alike = np.array([word for word in words if len(word) == before + 1])
        begin = buffer.end - before
        tail = jax.lax.dynamic_slice_in_dim(buffer.text, begin, before, axis=1)
        complete = jnp.all(tail[:, None] == alike[:, :-1], axis=-1) & (begin >= buffer.first)[:, None]  # [R words]
        banned = banned.at[:, alike[:, -1]].max(complete)
    return jnp.where(banned, -jnp.inf, scores)


def force_token(scores: jax.Array, token: int, rows: jax.Array) -> jax.Array:
    """Return the scores with 0 for one token and -infinity for all others, in rows where `rows`, bool [R], is true."""
    only = jnp.where(jnp.arange(scores.shape[-1]) == token, 0.0, -jnp.inf)
    return jnp.where(rows[:, None], only, scores)


def top_k(scores: jax.Array, count: int) -> jax.Array:
    """Keep the `count` best scores, and all equal to the lowest of them (top-k; Fan et al., arXiv 1805.04833)."""
    least = jax.lax.top_k(scores, min(count, scores.shape[-1]))[0][..., -1:]
    return jnp.where(scores < least, -jnp.inf, scores)


def top_p(scores: jax.Array, mass: float) -> jax.Array:
    """Keep the fewest best tokens whose probabilities add up to `mass`, at least one.

    This is nucleus sampling (Holtzman et al., arXiv 1904.09751).
    """
    order = jnp.argsort(-scores, axis=-1, stable=True)
    falling = jnp.take_along_axis(scores, order, axis=-1)
    before = jnp.cumsum(jax.nn.softmax(falling, axis=-1), axis=-1) - jax.nn.softmax(falling, axis=-1)
    kept = (before < mass).at[..., 0].set(True)
    rank = jnp.argsort(order, axis=-1)
    return jnp.where(jnp.take_along_axis(kept, rank, axis=-1), scores, -jnp.inf)
