"""Locality-sensitive hashing of vectors, and the order of tokens by their hashes (Kitaev et al. 2020, section 2).

A round hashes a vector x with a random matrix M, [H b/2]: its bucket is the index of the largest of the b numbers
[x M; -x M] (Andoni et al. 2015, arXiv 1509.02897). Two vectors with a small angle between them are in the same bucket
with a high probability. Several factors b1, b2, ... give b1 b2 ... buckets with small matrices.
"""

import functools
import math

import jax
import jax.numpy as jnp


def random_rotations(key: jax.Array, heads: int, size: int, *, rounds: int, factors: tuple[int, ...]) -> jax.Array:
    """Return the matrices of all heads and rounds, float32 [N H R K]; K is half of the sum of the factors."""
    return jax.random.normal(key, (heads, size, rounds, sum(factors) // 2))


def hash_vectors(vectors: jax.Array, rotations: jax.Array, factors: tuple[int, ...], real: jax.Array) -> jax.Array:
    """Return the bucket of each vector in each round, in an unsigned integer type: [B N T H] -> [B N R T].

    Args:
        rotations: float32 [N H R K].
        factors: even numbers; their product is the number of buckets.
        real: bool [B T]; padding has a separate bucket, after all others.
    """
    rotations = rotations.astype(vectors.dtype)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    rotated = product("BNTH,NHRK->BNRTK", jax.lax.stop_gradient(vectors), rotations)
    buckets, count = jnp.zeros(rotated.shape[:-1], jnp.int32), 1
    for part, factor in zip(jnp.split(rotated, _bounds(factors), axis=-1), factors, strict=True):
        buckets += count * jnp.argmax(jnp.concatenate([part, -part], axis=-1), axis=-1)
        count *= factor
    return jnp.where(real[:, None, None], buckets, count).astype(bucket_type(factors))


def bucket_type(factors: tuple[int, ...]) -> jnp.dtype:
    """Return the smallest dtype for the numbers of the buckets and of the bucket of padding."""
    largest = math.prod(factors)
    return next(one for one in map(jnp.dtype, ("uint8", "uint16", "uint32")) if largest <= jnp.iinfo(one).max)


def _bounds(factors: tuple[int, ...]) -> list[int]:
    return [sum(factors[:count]) // 2 for count in range(1, len(factors))]


def order_by_bucket(buckets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sort tokens by bucket and position. Return their positions, and the rank of each token: int32 [... T] each."""
    places = jnp.broadcast_to(jnp.arange(buckets.shape[-1], dtype=jnp.int32), buckets.shape)
    _, order = jax.lax.sort((buckets, places), num_keys=1, is_stable=True)
    _, ranks = jax.lax.sort((order, places), num_keys=1)
    return order, ranks


@jax.custom_vjp
def sort_tokens(x: jax.Array, order: jax.Array, ranks: jax.Array) -> jax.Array:
    """Sort the tokens of each round: [B N T H], int [B N R T] twice -> [B N R T H].

    The backward pass is a lookup too, by `ranks`; JAX's own would be a scatter.
    """
    return _gather(x[:, :, None], order)


@jax.custom_vjp
def unsort_tokens(x: jax.Array, order: jax.Array, ranks: jax.Array) -> jax.Array:
    """Undo `sort_tokens`: [B N R T H], int [B N R T] twice -> [B N R T H]."""
    return _gather(x, ranks)


def _gather(x: jax.Array, places: jax.Array) -> jax.Array:
    """Return the tokens at places: [B N R T H], int [B N R S] -> [B N R S H]; R of x may be 1."""
    return jnp.take_along_axis(x, places[..., None], axis=3)


sort_tokens.defvjp(
    lambda x, order, ranks: (sort_tokens(x, order, ranks), ranks),
    lambda ranks, cotangent: (jnp.sum(_gather(cotangent, ranks), axis=2), None, None),
)
unsort_tokens.defvjp(
    lambda x, order, ranks: (unsort_tokens(x, order, ranks), order),
    lambda order, cotangent: (_gather(cotangent, order), None, None),
)
