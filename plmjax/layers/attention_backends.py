"""How softmax(Q K^T + bias) V is computed: at once, or block by block for rows that are too long for [T S] arrays.

A backend takes queries [B T N H], already scaled, keys and values [B S N H], what is visible, a bias, the rate of
dropout and its key (None: no dropout), and returns [B T N H]. Backends agree but for rounding; with dropout they draw
other bits.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from plmjax.layers.dropout import dropped
from plmjax.layers.mesh_places import pieces
from plmjax.layers.product import float32_product
from plmjax.layers.visibility import Visibility

Bias = jax.Array | Callable[[jax.Array, jax.Array], jax.Array]
"""Added to the scores: float32 that broadcasts to [B N T S], or a function of the positions of queries and keys."""
SCORES = ("batch", "heads")
"""Logical names of the first axes of scores, [B N T S]."""
BLOCK = 512
"""Queries and keys of a block: as many scores as a row of 512 tokens has."""
SCORES_AT_ONCE = 2**26
"""Bytes of float32 scores that the dense backend makes at once on a device: what the 128 MiB of vector memory of a TPU
v5e or v6e hold beside all else, so that the scores never travel to the HBM."""


def probabilities(query: jax.Array, key: jax.Array, visibility: Visibility, bias: Bias | None) -> jax.Array:
    """softmax(Q K^T + bias), float32 [B N T S]; a backend's arguments."""
    return jax.nn.softmax(_scores(query, key, visibility, _of_positions(bias, visibility, query, key)), axis=-1)


def dense(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visibility: Visibility,
    bias: Bias | None,
    rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """All scores of a head at once, [B 1 T S], with a backward pass of its own.

    It keeps the inputs, the context, and the largest score and the softmax's denominator of each query, [B N T];
    nothing of the size of the scores. The backward pass computes the scores and draws dropout's mask again (Dao et
    al., arXiv 2205.14135, appendix B). Only reverse-mode differentiation is defined, and once; JAX refuses forward
    mode.

    It takes as many heads at a time as `SCORES_AT_ONCE` allows, and all of them where threefry draws a mask, which
    must not depend on how many rows a device has.
    """
    bias = _of_positions(bias, visibility, query, key)
    rows, length, heads, size = query.shape
    row_pieces, head_pieces = pieces((rows, heads), SCORES)
    groups = _groups(heads // head_pieces, 4 * (rows // row_pieces) * length * key.shape[1])
    if groups == 1 or (dropout_key is not None and str(jax.random.key_impl(dropout_key)) == "threefry2x32"):
        return _attend(rate, query, key, value, visibility, bias, dropout_key)

    def split(x: jax.Array) -> jax.Array:  # [B T N H] -> [groups B T N/groups H]; a device keeps its heads
        x = x.reshape(*x.shape[:2], head_pieces, groups, -1, size)
        return jnp.moveaxis(x, 3, 0).reshape(groups, *x.shape[:2], heads // groups, size)

    def group(inputs: tuple) -> jax.Array:
        number, query, key, value, bias = inputs
        own = None if dropout_key is None else jax.random.fold_in(dropout_key, number)
        return _attend(rate, query, key, value, visibility, bias, own)

    inputs = (jnp.arange(groups), split(query), split(key), split(value), _bias_of_groups(bias, head_pieces, groups))
    contexts = jax.lax.map(group, inputs).reshape(groups, rows, length, head_pieces, -1, size)
    return jnp.moveaxis(contexts, 0, 3).reshape(query.shape)


def _groups(heads: int, size: int) -> int:
    """The fewest equal groups of heads of `size` bytes that stay within `SCORES_AT_ONCE`; else single heads."""
    return next(
        n for n in range(1, heads + 1) if heads % n == 0 and (heads // n * size <= SCORES_AT_ONCE or n == heads)
    )


def _bias_of_groups(bias: jax.Array | None, pieces: int, groups: int) -> jax.Array | None:
    """A bias that broadcasts to [B N T S] -> [groups ...], each broadcasting to [B N/groups T S]."""
    if bias is None:
        return None
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if bias.shape[1] == 1:
        return jnp.broadcast_to(bias, (groups, *bias.shape))
    apart = bias.reshape(bias.shape[0], pieces, groups, -1, *bias.shape[2:])
    return jnp.moveaxis(apart, 2, 0).reshape(groups, bias.shape[0], -1, *bias.shape[2:])


def _of_positions(bias: Bias | None, visibility: Visibility, query: jax.Array, key: jax.Array) -> jax.Array | None:
    """The bias as an array."""
    if not callable(bias):
        return bias
    return bias(visibility.query_positions(query.shape[1]), jnp.arange(key.shape[1]))


def _scores(query: jax.Array, key: jax.Array, visibility: Visibility, bias: jax.Array | None) -> jax.Array:
    """Q K^T + bias, float32 [B N T S]."""
    scores = float32_product(functools.partial(jnp.einsum, "BTNH,BSNH->BNTS"), query, key)
    hidden = visibility.bias(query.shape[1], key.shape[1])
    scores = scores if hidden is None else scores + hidden
    return scores if bias is None else scores + bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(rate: float, *inputs: Any) -> jax.Array:
    return _attend_forward(rate, *inputs)[0]


def _attend_forward(
    rate: float,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visibility: Visibility,
    bias: jax.Array | None,
    dropout_key: jax.Array | None,
) -> tuple[jax.Array, tuple]:
    scores = _scores(query, key, visibility, bias)
    largest = jnp.max(scores, axis=-1)
    exponentials = jnp.exp(scores - largest[..., None])
    total = jnp.sum(exponentials, axis=-1)
    weights = dropped(exponentials, rate, dropout_key, axes=SCORES).astype(value.dtype)
    context = jnp.einsum("BNTS,BSNH->BTNH", weights, value, preferred_element_type=jnp.float32)
    context = (context / _of_queries(total)).astype(value.dtype)
    # Two numbers instead of their logsumexp: where all keys are hidden, it has no digits left for the sum.
    return context, (query, key, value, visibility, bias, dropout_key, context, largest, total)


def _attend_backward(rate: float, kept: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, visibility, bias, dropout_key, context, largest, total = kept
    cotangent = (cotangent / _of_queries(total)).astype(cotangent.dtype)
    scores = _scores(query, key, visibility, bias)
    exponentials = jnp.exp(scores - largest[..., None])
    weights = dropped(exponentials, rate, dropout_key, axes=SCORES).astype(value.dtype)
    of_value = jnp.einsum("BTNH,BNTS->BSNH", cotangent, weights)
    of_weights = jnp.einsum("BTNH,BSNH->BNTS", cotangent, value, preferred_element_type=jnp.float32)
    # The sum over keys of weight x gradient, from the H features of a query instead of its S weights.
    mean = jnp.einsum("BTNH,BTNH->BNT", cotangent, context, preferred_element_type=jnp.float32)
    of_scores = exponentials * (dropped(of_weights, rate, dropout_key, axes=SCORES) - mean[..., None])
    rounded = of_scores.astype(query.dtype)
    of_query = jnp.einsum("BNTS,BSNH->BTNH", rounded, key)
    of_key = jnp.einsum("BTNH,BNTS->BSNH", query, rounded)
    of_bias = None
    if bias is not None:
        (of_bias,) = jax.linear_transpose(lambda bias: jnp.broadcast_to(bias, scores.shape), bias)(of_scores)
    return of_query, of_key, of_value, None, of_bias, None


def _of_queries(x: jax.Array) -> jax.Array:
    """[B N T] -> [B T N 1]."""
    return jnp.moveaxis(x, 1, 2)[..., None]


_attend.defvjp(_attend_forward, _attend_backward)


def blockwise(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visibility: Visibility,
    bias: Bias | None,
    rate: float,
    dropout_key: jax.Array | None,
    block: int = BLOCK,
) -> jax.Array:
    """Scores of one block of queries and one block of keys at a time.

    The softmax is online (Milakov and Gimelshein, arXiv 1805.02867), and the backward pass computes the scores again
    (Rabe and Staats, arXiv 2112.05682). Memory grows with T + S, not with T S, unless the bias is an array.
    """
    queries, keys = query.shape[1], key.shape[1]
    size, width = min(block, queries), min(block, keys)
    visibility = visibility.padded(-queries % size, -keys % width)
    bias_of = _of_blocks(bias, visibility, queries, keys, size, width)
    query_blocks, key_blocks, value_blocks = _blocks(query, size), _blocks(key, width), _blocks(value, width)

    def of_queries(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        """number of the block, [B size N H] -> [B size N H]."""
        row, query = inputs

        def of_keys(state: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], None]:
            """Largest score and sum of exponentials so far [B N size], sum of values so far [B N size H]."""
            largest, total, context = state
            column, key, value = inputs
            scores = float32_product(functools.partial(jnp.einsum, "BTNH,BSNH->BNTS"), query, key)
            hidden = visibility.block(row * size, size, column * width, width).bias(size, width)
            if hidden is not None:
                scores = scores + hidden
            if bias is not None:
                scores = scores + bias_of(row, column)
            scores = jnp.where(column * width + jnp.arange(width) < keys, scores, -jnp.inf)
            # The softmax does not depend on what is subtracted from all scores: no gradient goes through it.
            new = jax.lax.stop_gradient(jnp.maximum(largest, jnp.max(scores, axis=-1)))
            weights, fade = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
            total = total * fade + jnp.sum(weights, axis=-1)
            if dropout_key is not None:
                here = jax.random.fold_in(jax.random.fold_in(dropout_key, row), column)
                weights = dropped(weights, rate, here, axes=SCORES)
            product = functools.partial(jnp.einsum, "BNTS,BSNH->BNTH")
            seen = float32_product(product, weights.astype(value.dtype), value)
            return (new, total, context * fade[..., None] + seen), None

        rows, _, heads, features = query.shape
        start = (
            jnp.full((rows, heads, size), -jnp.inf),
            jnp.zeros((rows, heads, size)),
            jnp.zeros((rows, heads, size, features)),
        )
        columns = jnp.arange(key_blocks.shape[0])
        step = jax.checkpoint(of_keys, prevent_cse=False)
        (_, total, context), _ = jax.lax.scan(step, start, (columns, key_blocks, value_blocks))
        return jnp.einsum("BNTH->BTNH", context / total[..., None]).astype(value.dtype)

    rows = jnp.arange(query_blocks.shape[0])
    contexts = jax.lax.map(jax.checkpoint(of_queries, prevent_cse=False), (rows, query_blocks))
    return jnp.moveaxis(contexts, 0, 1).reshape(query.shape[0], -1, *query.shape[2:])[:, :queries]


def _of_blocks(
    bias: Bias | None, visibility: Visibility, queries: int, keys: int, size: int, width: int
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The bias as a function of the numbers of a block of `size` queries and a block of `width` keys."""
    if bias is None or callable(bias):
        positions = visibility.query_positions(queries + -queries % size)

        def computed(row: jax.Array, column: jax.Array) -> jax.Array:
            own = jax.lax.dynamic_slice_in_dim(positions, row * size, size, axis=-1)
            return bias(own, column * width + jnp.arange(width))

        return computed
    # An axis of length 1 is broadcast, and stays as it is.
    rows, columns = (length > 1 for length in bias.shape[-2:])
    above = [(0, -queries % size * rows), (0, -keys % width * columns)]
    filled = jnp.pad(bias, [(0, 0)] * (bias.ndim - 2) + above)

    def cut(row: jax.Array, column: jax.Array) -> jax.Array:
        block = filled
        for axis, first, length in ((-2, row * size, size), (-1, column * width, width)):
            if block.shape[axis] > 1:
                block = jax.lax.dynamic_slice_in_dim(block, first, length, axis)
        return block

    return cut


def _blocks(x: jax.Array, size: int) -> jax.Array:
    """[B T N H], filled up with zeros -> [blocks B size N H]."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0), (0, 0)))
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


BACKENDS = {"dense": dense, "blockwise": blockwise}
"""Name -> backend, as `Execution.attention` names it."""
