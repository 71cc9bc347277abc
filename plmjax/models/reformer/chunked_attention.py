"""Attention within chunks of a row: each chunk of W consecutive tokens sees itself and a few chunks around it.

Time and memory grow linearly with the row. Reformer's local layers divide the row in its own order. Its LSH layers
first sort the tokens by their hashes, so the positions of tokens are an input. The chunks form a circle, as in the
released code: the chunk before the first one is the last one.
"""

import functools
from typing import NamedTuple, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.layers.dropout import apply_dropout
from plmjax.layers.product import float32_product

HIDDEN = -1e9
"""Score of a key that its query does not see, as in transformers."""
CHUNKS = ("batch", "heads", None, None, None)
"""Logical axes of vectors in chunks, [B N C W H]."""


class Chunks(NamedTuple):
    """The chunks that each chunk sees: itself, `before` chunks before it and `after` chunks after it."""

    size: int
    before: int
    after: int

    def split(self, x: jax.Array) -> jax.Array:
        """Divide the tokens into chunks: [B N S ...] -> [B N C W ...]."""
        return x.reshape(*x.shape[:2], -1, self.size, *x.shape[3:])

    def join(self, x: jax.Array) -> jax.Array:
        """Undo `split`."""
        return x.reshape(*x.shape[:2], -1, *x.shape[4:])

    def around(self, x: jax.Array) -> jax.Array:
        """Return the tokens that each chunk sees, in the order of the row: [B N C W ...] -> [B N C K ...], K tokens."""
        rolled = [jnp.roll(x, -shift, axis=2) for shift in range(-self.before, self.after + 1)]
        return jnp.concatenate(rolled, axis=3)


@flax.struct.dataclass
class Tokens:
    """The tokens of an array in the order in which they are divided into chunks.

    positions: int [B N S], the position of each token in its row; N is 1 if all heads have the same order.
    documents: int [B N S], the document of each token; 0 for padding.
    """

    positions: jax.Array
    documents: jax.Array

    @classmethod
    def of_rows(cls, documents: jax.Array) -> Self:
        """Return the tokens of rows in their own order; documents: int [B T]."""
        return cls(jnp.arange(documents.shape[1])[None, None], documents[:, None])

    def visible(self, keys: Self, causal: bool) -> jax.Array:
        """Return true for keys that a token sees: bool [... W S]. Padding sees all real keys; no token sees padding."""
        own, others = self.documents[..., None], keys.documents[..., None, :]
        seen = (others > 0) & ((own == others) | (own == 0))
        if causal:
            seen &= self.positions[..., None] >= keys.positions[..., None, :]
        return seen


def weights(
    query: jax.Array,
    key: jax.Array,
    tokens: Tokens,
    *,
    ranks: jax.Array,
    chunks: Chunks,
    causal: bool,
    itself: float | None,
) -> jax.Array:
    """Return the weights of all pairs of tokens of a row, float32 [B N T S]; 0 for pairs outside the chunks.

    A key that its query sees several times has the sum of its weights. A hidden key has the weight 0.

    Args:
        query: [B N T H], in the order of the row. key: [B N S H].
        tokens: the tokens in this order.
        chunks: as for `attend`, as are `causal` and `itself`.
        ranks: int [B N R T], the rank of each token in each of R orders, which are joined and divided into chunks; B
            and N may be 1.
    """
    rounds, length = ranks.shape[2:]
    count = length // chunks.size
    own = jnp.arange(rounds)[:, None] * count + ranks // chunks.size
    members = jnp.sum(jax.nn.one_hot(own, rounds * count), axis=2)  # [B N T C], how many times a token is in each chunk
    around = sum(jnp.roll(members, shift, axis=-1) for shift in range(-chunks.before, chunks.after + 1))
    times = jnp.einsum("BNTC,BNSC->BNTS", around, members, precision=jax.lax.Precision.HIGHEST)
    seen = tokens.visible(tokens, causal)
    scores = jnp.where(seen, float32_product(functools.partial(jnp.einsum, "BNTH,BNSH->BNTS"), query, key), HIDDEN)
    if itself is not None:
        scores = jnp.where(jnp.eye(length, dtype=bool), itself, scores)
    largest = jnp.max(scores, axis=-1, where=times > 0, initial=-jnp.inf, keepdims=True)
    found = times * jnp.exp(jnp.minimum(scores - largest, 0))
    return jnp.where(seen, found / jnp.sum(found, axis=-1, keepdims=True), 0)


class Context(NamedTuple):
    """The result of attention before the division by the softmax's denominator, so that several can be added.

    values: the sum of exp(score - largest) v, float32 [B N S H].
    largest: the largest score of each query, float32 [B N S].
    total: the sum of exp(score - largest), float32 [B N S].
    """

    values: jax.Array
    largest: jax.Array
    total: jax.Array

    def result(self) -> jax.Array:
        """Return the mean of the values, weighted by the softmax: float32 [B N S H]."""
        return self.values / self.total[..., None]

    def join_rounds(self) -> jax.Array:
        """Return the result of one softmax over several rounds of the same queries: [B N R T H] -> [B N T H]."""
        fade = jnp.exp(self.largest - jnp.max(self.largest, axis=2, keepdims=True))
        total = jnp.sum(fade * self.total, axis=2)
        return jnp.sum(fade[..., None] * self.values, axis=2) / total[..., None]


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    tokens: Tokens,
    chunks: Chunks,
    causal: bool,
    itself: float | None,
    rate: float,
    dropout_key: jax.Array | None,
    at_once: bool,
) -> Context:
    """Attend within chunks.

    Args:
        query: [B N S H]; the scores are query . key. S is a multiple of the chunk's size.
        key: [B N S H].
        value: [B N S H].
        tokens: the tokens in the same order.
        chunks: the size of a chunk and its neighbours.
        causal: true to hide later tokens of the row.
        itself: score of a token for itself; None: the product.
        rate: of the dropout of attention probabilities.
        dropout_key: the key of the dropout; None: no dropout.
        at_once: true to compute all chunks at the same time; otherwise one at a time, and again in the backward pass.
    """
    split = functools.partial(jax.tree.map, chunks.split)
    queries, own = nn.with_logical_constraint(split(query), CHUNKS), split(tokens)
    keys, values = (chunks.around(nn.with_logical_constraint(split(x), CHUNKS)) for x in (key, value))
    seen = jax.tree.map(chunks.around, own)

    def attend_chunk(number: jax.Array | None, parts: tuple) -> Context:
        """Attend from chunks [B N ... W H] to the keys that they see, [B N ... K H]."""
        query, key, value, own, seen = parts
        scores = float32_product(functools.partial(jnp.einsum, "...TH,...SH->...TS"), query, key)
        scores = jnp.where(own.visible(seen, causal), scores, HIDDEN)
        if itself is not None:
            scores = jnp.where(own.positions[..., None] == seen.positions[..., None, :], itself, scores)
        # The softmax does not depend on the number subtracted from all scores, so no gradient passes through it.
        largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1))
        weights = jnp.exp(scores - largest[..., None])
        total = jnp.sum(weights, axis=-1)
        if dropout_key is not None:
            chunk_key = dropout_key if number is None else jax.random.fold_in(dropout_key, number)
            weights = apply_dropout(weights, rate, chunk_key, axes=("batch", "heads"))
        product = functools.partial(jnp.einsum, "...TS,...SH->...TH")
        return Context(float32_product(product, weights.astype(value.dtype), value), largest, total)

    parts = queries, keys, values, own, seen
    if at_once:
        return Context(*map(chunks.join, attend_chunk(None, parts)))
    by_chunk = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), parts)
    step = jax.checkpoint(attend_chunk, prevent_cse=False)
    found = jax.lax.map(lambda one: step(*one), (jnp.arange(queries.shape[2]), by_chunk))
    return Context(*(chunks.join(jnp.moveaxis(x, 0, 2)) for x in found))
