"""The two attentions of Reformer: LSH attention and local attention, both in chunks.

LSH attention has one projection for queries and keys. A key is its query, scaled to length 1. Tokens are sorted by the
bucket of their hash, then by position, and the sorted row is divided into chunks of W tokens. A token sees the tokens
of its chunk and of the chunk before it, most of which are in its bucket. One softmax covers the keys of all R rounds
of hashing:

    q_i = W_q x_i,   k_i = q_i / |q_i|,   v_i = W_v x_i
    softmax over rounds r and keys j of (q_i . k_j)         for all j in the chunks that i sees in round r

Local attention has three projections, and divides the row into chunks without sorting it.

Deviation: a key that a query sees in several rounds counts several times, as in trax and in transformers; equation 7 of
the paper's appendix divides by the number of times.
Deviation: tokens of other buckets in the same chunk are seen, as in trax and in transformers; equation 4 hides them.
"""

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.layers.attention.recording import OWN, record
from plmjax.layers.dropout import Dropout
from plmjax.layers.product import float32_product
from plmjax.layers.projection import Projection
from plmjax.models.reformer.cache import ReformerCache
from plmjax.models.reformer.chunked_attention import HIDDEN, Chunks, Context, Tokens, attend, weights
from plmjax.models.reformer.hashing import hash_vectors, order_by_bucket, random_rotations, sort_tokens, unsort_tokens

ITSELF = -1e5
"""Score of a token for itself in LSH attention, as in trax: it counts only where the token sees no other."""
LENGTH_EPSILON = 1e-6
"""Added to the mean square of a query, before the query is divided by the square root."""


class Vectors(NamedTuple):
    """Projected queries, keys and values, [B N T H] each."""

    query: jax.Array
    key: jax.Array
    value: jax.Array


class ChunkedAttention(nn.Module):
    """The base of both attentions: N heads of size H, and the projection of their results to D features.

    chunks: size of a chunk, and the numbers of neighbouring chunks that it sees.
    """

    features: int
    num_heads: int
    head_size: int
    chunks: Chunks
    causal: bool
    dropout: float
    kernel_init: Initializer
    execution: Execution

    def setup(self) -> None:
        self.output = self._projection((self.features,), ("heads", "head", "embed"))
        self.probability_dropout = Dropout(self.dropout)

    def vectors(self, x: jax.Array) -> Vectors:
        """Project [B T D] to queries, keys and values."""
        raise NotImplementedError(f"{type(self).__name__} must define `vectors`.")

    def attend(self, *vectors: jax.Array, tokens: Tokens, itself: float | None, deterministic: bool) -> Context:
        """Attend within the chunks of rows, [B N S H] each; a row that is not longer than a chunk is one chunk."""
        chunks = self.chunks_of(vectors[0].shape[2])
        key = self.probability_dropout.key(deterministic)
        return attend(
            *vectors,
            tokens=tokens,
            chunks=chunks,
            causal=self.causal,
            itself=itself,
            rate=self.dropout,
            dropout_key=key,
            at_once=self.execution.at_once,
        )

    def chunks_of(self, length: int) -> Chunks:
        """Return the chunks of rows of `length` tokens."""
        return Chunks(length, 0, 0) if length <= self.chunks.size else self.chunks

    def record(
        self, query: jax.Array, key: jax.Array, documents: jax.Array, *, ranks: jax.Array, itself: float | None
    ) -> None:
        """Record the attention weights of rows if they are requested.

        documents: int [B T]. The other arguments are those of `chunked_attention.weights`.
        """
        tokens, chunks = Tokens.of_rows(documents), self.chunks_of(query.shape[2])
        record(
            self.name,
            lambda: weights(query, key, tokens, ranks=ranks, chunks=chunks, causal=self.causal, itself=itself),
        )

    def join(self, context: jax.Array) -> jax.Array:
        """Project the results of all heads: [B N T H] -> [B T D]."""
        return self.output(jnp.moveaxis(context, 1, 2).astype(self.execution.dtype))

    def _heads(self) -> Projection:
        return self._projection((self.num_heads, self.head_size), ("embed", "heads", "head"))

    def _projection(self, features: tuple[int, ...], axes: tuple[str, ...]) -> Projection:
        return Projection(features, axes, self.kernel_init, self.execution.dtype, use_bias=False)


class LocalAttention(ChunkedAttention):
    """Attention to the tokens of the same chunk and of its neighbours."""

    def setup(self) -> None:
        super().setup()
        self.query, self.key, self.value = self._heads(), self._heads(), self._heads()

    def vectors(self, x: jax.Array) -> Vectors:
        """Project [B T D]; the keys are scaled."""
        key = self.key(x) * jnp.asarray(self.head_size**-0.5, self.execution.dtype)
        return Vectors(*map(_by_heads, (self.query(x), key, self.value(x))))

    def __call__(self, x: jax.Array, documents: jax.Array, *, deterministic: bool) -> tuple[jax.Array, Vectors]:
        """Attend within rows, [B T D] -> [B T D], and return the projected vectors.

        documents: int [B T], the document of each token; 0 for padding.
        """
        vectors, tokens = self.vectors(x), Tokens.of_rows(documents)
        context = self.attend(*vectors, tokens=tokens, itself=None, deterministic=deterministic)
        self.record(vectors.query, vectors.key, documents, ranks=jnp.arange(x.shape[1])[None, None, None], itself=None)
        return self.join(context.result()), vectors

    def decode_step(self, x: jax.Array, cache: ReformerCache, layer: jax.Array) -> tuple[jax.Array, ReformerCache]:
        """Attend from one more token of each row, [B 1 D] -> [B 1 D], and return the cache with it.

        layer: the index of the layer, int scalar.
        """
        vectors = self.vectors(x)
        cache = cache.write(layer, vectors.key, vectors.value)
        first = (cache.length // self.chunks.size - self.chunks.before) * self.chunks.size
        counts = (jnp.arange(cache.capacity) >= first).astype(jnp.float32)
        return self.join(_attend_one_token(vectors.query, cache, layer, counts=counts, itself=None)), cache


class LshAttention(ChunkedAttention):
    """Attention to the tokens with similar vectors.

    rounds: number of rounds of hashing, R.
    buckets: factors of the number of buckets.
    seed: seed of the rotations, if there is no random collection "sampling".
    """

    rounds: int = 1
    buckets: tuple[int, ...] = (2,)
    seed: int = 0

    def setup(self) -> None:
        super().setup()
        self.query_key, self.value = self._heads(), self._heads()

    def vectors(self, x: jax.Array) -> Vectors:
        query, value = _by_heads(self.query_key(x)), _by_heads(self.value(x))
        return Vectors(query, self.keys(query), value)

    def keys(self, query: jax.Array) -> jax.Array:
        """Return the keys of queries, [... H]: scaled to length sqrt(H), times the factor 1 / sqrt(H) of scores."""
        square = jnp.mean(jnp.square(query.astype(jnp.float32)), axis=-1, keepdims=True)
        key = query.astype(jnp.float32) * jax.lax.rsqrt(square + LENGTH_EPSILON) / math.sqrt(self.head_size)
        return key.astype(query.dtype)

    def hash(self, query: jax.Array, real: jax.Array, layer: jax.Array) -> jax.Array:
        """Return the buckets of projected queries: [B N T H], bool [B T] -> int [B N R T]."""
        sampled = self.has_rng("sampling")
        key = self.make_rng("sampling") if sampled else jax.random.fold_in(jax.random.key(self.seed), layer)
        rotations = random_rotations(key, self.num_heads, self.head_size, rounds=self.rounds, factors=self.buckets)
        return hash_vectors(query, rotations, self.buckets, real)

    def __call__(
        self, x: jax.Array, documents: jax.Array, layer: jax.Array, buckets: jax.Array | None, *, deterministic: bool
    ) -> tuple[jax.Array, Vectors, jax.Array]:
        """Attend within rows, [B T D] -> [B T D], and return the projected vectors and the buckets, int [B N R T].

        Args:
            documents: int [B T], the document of each token; 0 for padding.
            layer: the index of the layer, int scalar.
            buckets: the buckets from an earlier pass over the same vectors; None to hash the vectors.
        """
        vectors, tokens = self.vectors(x), Tokens.of_rows(documents)
        buckets = self.hash(vectors.query, documents > 0, layer) if buckets is None else buckets
        attend = functools.partial(self.attend, itself=ITSELF, deterministic=deterministic)
        if x.shape[1] <= self.chunks.size:
            self.record(
                vectors.query, vectors.key, documents, ranks=jnp.arange(x.shape[1])[None, None, None], itself=ITSELF
            )
            return self.join(attend(*vectors, tokens=tokens).result()), vectors, buckets

        order, ranks = order_by_bucket(buckets)
        self.record(vectors.query, vectors.key, documents, ranks=ranks, itself=ITSELF)
        # One lookup for several arrays: on a TPU it takes as long for 64 features as for 128.
        both = jnp.concatenate([vectors.query, vectors.value], axis=-1)
        query, value = jnp.split(_join_rounds(sort_tokens(both, order, ranks)), 2, axis=-1)
        documents = jnp.take_along_axis(documents[:, None, None], order, axis=-1)
        tokens = Tokens(_join_rounds(order), _join_rounds(documents))
        context = attend(query, self.keys(query), value, tokens=tokens)
        found = jnp.concatenate([context.values, context.largest[..., None], context.total[..., None]], axis=-1)
        found = unsort_tokens(found.reshape(*order.shape, -1), order, ranks)
        rounds = Context(found[..., :-2], found[..., -2], found[..., -1])
        return self.join(rounds.join_rounds()), vectors, buckets

    def decode_step(
        self, x: jax.Array, cache: ReformerCache, layer: jax.Array, hashing_layer: jax.Array
    ) -> tuple[jax.Array, ReformerCache]:
        """Attend from one more token of each row, [B 1 D] -> [B 1 D], and return the cache with it.

        The token sees what the last token of the same row sees when the row is read at once.

        Args:
            layer: the index of the layer, int scalar.
            hashing_layer: the index of the layer among the LSH layers, int scalar.
        """
        vectors = self.vectors(x)
        new = self.hash(vectors.query, cache.last_mask > 0, layer)
        cache = cache.write(layer, vectors.key, vectors.value).write_buckets(hashing_layer, new)
        ranks = order_by_bucket(cache.buckets[hashing_layer])[1]
        counts = self._counts(ranks, cache.length, cache.padded_length)
        return self.join(_attend_one_token(vectors.query, cache, layer, counts=counts, itself=ITSELF)), cache

    def _counts(self, ranks: jax.Array, last: jax.Array, length: jax.Array) -> jax.Array:
        """Return how many times the token at `last` sees each token: int [B N R S] -> float32 [B N S].

        ranks: the rank of each token in the order of each round.
        length: number of tokens of the row with its padding, int scalar.
        """
        size, chunks = self.chunks.size, length // self.chunks.size
        number = jnp.arange(self.rounds)[:, None] * chunks + ranks // size  # of the chunk in all rounds
        own = jnp.take(number, last, axis=-1)[..., None, None]  # [B N R 1 1], the chunk of the token in each round
        around = jnp.maximum(self.rounds * chunks, 1)
        back = (own - number[:, :, None]) % around
        seen = sum((back == before % around).astype(jnp.int32) for before in range(self.chunks.before + 1))
        return jnp.where(length <= size, 1.0, jnp.sum(seen, axis=(2, 3), dtype=jnp.float32))


def _join_rounds(x: jax.Array) -> jax.Array:
    """Return all rounds as one row: [B N R T ...] -> [B N R*T ...]."""
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _attend_one_token(
    query: jax.Array, cache: ReformerCache, layer: jax.Array, *, counts: jax.Array, itself: float | None
) -> jax.Array:
    """Attend from the last token in a cache: [B N 1 H] -> float32 [B N 1 H].

    counts: how many times it sees each token, float32 that broadcasts to [B N S].
    itself: score of the token for itself; None: the product.
    """
    kept, places = cache.layer(layer), jnp.arange(cache.capacity)
    scores = float32_product(functools.partial(jnp.einsum, "BNTH,BSNH->BNTS"), query, kept.keys)
    seen = (places <= cache.length) & (cache.key_mask > 0)
    scores = jnp.where(seen[:, None, None], scores, HIDDEN)
    if itself is not None:
        scores = jnp.where(places == cache.length, itself, scores)
    counts = jnp.broadcast_to(counts[..., None, :], scores.shape)
    largest = jnp.max(jnp.where(counts > 0, scores, -jnp.inf), axis=-1, keepdims=True)
    found = counts * jnp.exp(jnp.minimum(scores - largest, 0))
    found /= jnp.sum(found, axis=-1, keepdims=True)
    record(OWN, lambda: found)
    return float32_product(
        functools.partial(jnp.einsum, "BNTS,BSNH->BNTH"), found.astype(kept.values.dtype), kept.values
    )


def _by_heads(x: jax.Array) -> jax.Array:
    """Transpose [B T N H] to [B N T H]."""
    return nn.with_logical_constraint(jnp.moveaxis(x, 2, 1), ("batch", "heads", "length", "head"))
