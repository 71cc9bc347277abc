"""Backends of attention, softmax(Q K^T + bias) V: all scores at once, one block at a time, or cuDNN's fused kernel.

`blockwise` is for rows that are too long for [T S] arrays. A backend takes queries [B T N H], already scaled, keys and
values [B S N H], the mask terms, the bias terms, the dropout rate and the dropout key (None: no dropout). It returns
[B T N H]. The results of backends are equal except for rounding; with dropout they draw different masks. The backends
in `BACKENDS` skip everything outside a window (`plmjax.layers.attention.bands`). None of them returns attention
weights: `weights` computes these separately, for `output_attentions`.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.mask_terms import Causal, MaskTerms
from plmjax.errors import UserError
from plmjax.layers.attention.bands import join_blocks, split_blocks, within_reach
from plmjax.layers.dropout import apply_dropout, is_threefry
from plmjax.layers.partitioning import shard_counts
from plmjax.layers.product import float32_product

SCORES = ("batch", "heads")
"""Logical names of the first axes of scores, [B N T S]."""
BLOCK = 512
"""Number of queries and of keys in a block of `blockwise`."""
SCORES_AT_ONCE = 2**26
"""Maximum number of bytes of float32 scores that the dense backend computes at once on a device. Bias terms with a
score for every row, head, query and key count too. The vector memory of a TPU v5e or v6e, 128 MiB, has room for this
many besides everything else, so that scores are never moved to HBM.
"""
LANES = 128
"""Number of columns of a TPU's register. The number of queries in a block is a multiple of it."""
MANY_KEYS = 4
"""Ratio of keys to queries from which the dropout mask is drawn with the keys as its last axis.

On a TPU v5e a layer with 512 queries and 16,384 keys then takes a fifth less time, and one with 128 and 512 takes 3 %
less. With a smaller ratio a layer would take up to 20 % more time (benchmarks/planned_attention.py).
"""
SMALL_VECTOR_MEMORY = ("TPU v2", "TPU v3")
"""Values of `device_kind` whose vector memory, 16 MiB, is too small for the scores of a group of heads. A loop over
groups would only cost time.
"""


def dense(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask_terms: MaskTerms,
    terms: tuple[BiasTerm, ...],
    rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """Compute all scores of a head at once, [B 1 T S], with a custom backward pass.

    The forward pass keeps the inputs, the context, and the largest score and the softmax's denominator of each query,
    [B N T]. It keeps no array of the size of the scores. The backward pass computes the scores and draws the dropout
    mask again (Dao et al., arXiv 2205.14135, appendix B). Only first-order reverse-mode differentiation is defined; JAX
    raises an error for forward mode.

    If all scores together exceed `SCORES_AT_ONCE`, a few heads are computed at a time. If those of one head do, a block
    of queries is computed at a time. In two cases everything is computed together: on the devices of
    `SMALL_VECTOR_MEMORY`, and if threefry draws the dropout mask, because that mask must not depend on the number of
    rows on a device.
    """
    rows, length, heads, _ = query.shape
    row_pieces, head_pieces = shard_counts((rows, heads), SCORES)
    device, groups = jax.sharding.get_abstract_mesh().abstract_device, _Groups(1, head_pieces)
    if (device is None or device.device_kind not in SMALL_VECTOR_MEMORY) and not _draws_for_all_rows(dropout_key):
        size = 4 * (rows // row_pieces) * key.shape[1]  # of the scores of a query and a head on a device
        block = _queries_at_once(length, size)
        if block < length:
            return _by_query_blocks(
                block, query, key, value, mask_terms=mask_terms, terms=terms, rate=rate, dropout_key=dropout_key
            )
        arrays = 1 + _large_terms(query, key, mask_terms, terms)
        groups = _Groups.of(heads // head_pieces, arrays * length * size, head_pieces)
    return _attend(groups, rate, query, key, value, mask_terms, terms, dropout_key)


def _large_terms(query: jax.Array, key: jax.Array, mask_terms: MaskTerms, terms: tuple[BiasTerm, ...]) -> int:
    """Return the number of terms whose scores have the full shape [B N T S]."""
    rows, length, heads, _ = query.shape
    shapes = (jax.eval_shape(lambda term=term: _term_scores(term, query, key, mask_terms)).shape for term in terms)
    return sum(shape == (rows, heads, length, key.shape[1]) for shape in shapes)


def _queries_at_once(queries: int, size: int) -> int:
    """Return the number of queries in a block: all, or fewer if the scores of one head exceed `SCORES_AT_ONCE`.

    size: number of bytes of the scores of one query and one head.
    """
    if queries * size <= SCORES_AT_ONCE:
        return queries
    count = math.ceil(queries * size / (SCORES_AT_ONCE // 2))
    return LANES * math.ceil(queries / count / LANES)


def _by_query_blocks(
    block: int,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask_terms: MaskTerms,
    terms: tuple[BiasTerm, ...],
    rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """Call `dense` for each block of queries in turn, with all keys."""
    queries, keys = query.shape[1], key.shape[1]
    padded = 0, queries + -queries % block, 0, keys
    mask_terms, terms = mask_terms.slice_padded(*padded), tuple(term.slice_padded(*padded) for term in terms)
    wide, narrow = _widen((key, value, terms))

    def attend_block(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:  # [B block N H] -> [B block N H]
        number, query = inputs
        key, value, terms = narrow(wide)
        cut = number * block, block, 0, keys
        seen, own = mask_terms.block(*cut), tuple(term.block(*cut) for term in terms)
        block_key = None if dropout_key is None else jax.random.fold_in(dropout_key, number)
        return dense(query, key, value, mask_terms=seen, terms=own, rate=rate, dropout_key=block_key)

    blocks = split_blocks(query, block)
    return join_blocks(jax.lax.map(attend_block, (jnp.arange(len(blocks)), blocks)), queries)


def _widen(arrays: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Cast 16-bit arrays of a tree to float32. Return the tree, and a function that casts it back.

    A loop sums the gradients of arrays that its steps share in the dtype of these arrays. In float32 the sum is
    precise.
    """
    dtypes = jax.tree.map(lambda x: x.dtype, arrays)
    narrow = (jnp.bfloat16, jnp.float16)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype in narrow else x, arrays)
    return wide, lambda wide: jax.tree.map(lambda x, dtype: x.astype(dtype), wide, dtypes)


def weights(query: jax.Array, key: jax.Array, mask_terms: MaskTerms, terms: tuple[BiasTerm, ...]) -> jax.Array:
    """Return the attention weights without dropout: float32 [B N T S].

    The arguments are those of a backend. The weight of a hidden key is 0, also if a query sees no key.
    """
    hidden = mask_terms.bias(query.shape[1], key.shape[1])
    probabilities = jax.nn.softmax(_scores(query, key, mask_terms, terms), axis=-1)
    return probabilities if hidden is None else jnp.where(hidden == 0, probabilities, 0.0)


class _Groups(NamedTuple):
    """Groups of heads that are computed one after the other.

    Attributes:
        count: number of groups.
        pieces: number of shards into which the mesh divides the heads. Each shard has a part of every group.
    """

    count: int
    pieces: int

    @classmethod
    def of(cls, heads: int, size: int, pieces: int) -> Self:
        """Return one group if the scores of all heads on a device, `size` bytes each, fit into `SCORES_AT_ONCE`.

        Otherwise return the smallest number of groups such that the scores of one group fit into half of it.
        """
        if heads * size <= SCORES_AT_ONCE:
            return cls(1, pieces)
        # The other half holds the copies of the loop: a group's part of the queries, keys, values and results.
        counts = (count for count in range(1, heads) if heads % count == 0)
        return cls(next((count for count in counts if heads // count * size <= SCORES_AT_ONCE // 2), heads), pieces)

    def map(
        self,
        function: Callable[..., tuple],
        inputs: tuple,
        axes: tuple[int | None, ...],
        out_axes: tuple[int | None, ...],
    ) -> tuple[jax.Array, ...]:
        """Call function(index of a group, its part of each input ...) for all groups, and join the results.

        The index is None if there is one group.

        axes: axis of the heads in each input; None if all groups share the input.
        out_axes: axis of the heads in each result; None if the results of the groups are summed.
        """
        if self.count == 1:
            return function(None, *inputs)
        parts = [None if axis is None else self._split(x, axis) for x, axis in zip(inputs, axes, strict=True)]

        def group(numbered: tuple) -> tuple:
            number, parts = numbered
            return function(
                number, *(whole if part is None else part for whole, part in zip(inputs, parts, strict=True))
            )

        results = jax.lax.map(group, (jnp.arange(self.count), parts))
        return tuple(
            jnp.sum(x, axis=0) if axis is None else self._join(x, axis)
            for x, axis in zip(results, out_axes, strict=True)
        )

    def _split(self, x: jax.Array, axis: int) -> jax.Array:  # [.. N ..] -> [count .. N/count ..]
        x = x.reshape(*x.shape[:axis], self.pieces, self.count, -1, *x.shape[axis + 1 :])
        x = jnp.moveaxis(x, axis + 1, 0)
        return x.reshape(*x.shape[: axis + 1], -1, *x.shape[axis + 3 :])

    def _join(self, x: jax.Array, axis: int) -> jax.Array:  # [count .. N/count ..] -> [.. N ..]
        x = x.reshape(*x.shape[: axis + 1], self.pieces, -1, *x.shape[axis + 2 :])
        x = jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 3 :])


def _draws_for_all_rows(dropout_key: jax.Array | None) -> bool:
    return dropout_key is not None and is_threefry(dropout_key)


def _scores(query: jax.Array, key: jax.Array, mask_terms: MaskTerms, terms: tuple[BiasTerm, ...]) -> jax.Array:
    """Return the sum of Q K^T, the mask bias and all bias terms: float32 [B N T S]."""
    scores = float32_product(functools.partial(jnp.einsum, "BTNH,BSNH->BNTS"), query, key)
    hidden = mask_terms.bias(query.shape[1], key.shape[1])
    scores = scores if hidden is None else scores + hidden
    for term in terms:
        scores = scores + _term_scores(term, query, key, mask_terms)
    return scores


def _term_scores(term: BiasTerm, query: jax.Array, key: jax.Array, mask_terms: MaskTerms) -> jax.Array:
    positions = mask_terms.query_positions(query.shape[1]), mask_terms.key_positions(key.shape[1])
    return term.scores(query, key, *positions)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(groups: _Groups, rate: float, *inputs: Any) -> jax.Array:
    return _attend_forward(groups, rate, *inputs)[0]


def _attend_forward(
    groups: _Groups,
    rate: float,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask_terms: MaskTerms,
    terms: tuple[BiasTerm, ...],
    dropout_key: jax.Array | None,
) -> tuple[jax.Array, tuple]:
    arrays, structure = jax.tree.flatten(terms)

    def forward(number: jax.Array | None, query: jax.Array, key: jax.Array, value: jax.Array, *arrays: Any) -> tuple:
        scores = _scores(query, key, mask_terms, jax.tree.unflatten(structure, arrays))
        largest = jnp.max(scores, axis=-1)
        exponentials = jnp.exp(scores - largest[..., None])
        total = jnp.sum(exponentials, axis=-1)
        weights = _dropout(rate, dropout_key, number, terms)(exponentials).astype(value.dtype)
        context = jnp.einsum("BNTS,BSNH->BTNH", weights, value, preferred_element_type=jnp.float32)
        return (context / _queries_first(total)).astype(value.dtype), largest, total

    inputs, axes = (query, key, value, *arrays), (2, 2, 2, *_head_axes(terms))
    context, largest, total = groups.map(forward, inputs, axes, (2, 1, 1))
    # The maximum and the sum are kept instead of their logsumexp. If all keys are hidden, the maximum is so large in
    # magnitude that float32 has few digits left for the logarithm of the sum.
    return context, (query, key, value, mask_terms, terms, dropout_key, context, largest, total)


def _attend_backward(groups: _Groups, rate: float, kept: tuple, cotangent: jax.Array) -> tuple:
    query, key, value, mask_terms, terms, dropout_key, context, largest, total = kept
    cotangent = (cotangent / _queries_first(total)).astype(cotangent.dtype)
    # The sum over keys of weight x gradient, computed from a query's H features instead of its S weights. It is
    # computed for all groups at once: a loop would copy the context, and XLA fuses this sum with the product that
    # computes the cotangent.
    mean = jnp.sum(cotangent.astype(jnp.float32) * context.astype(jnp.float32), axis=-1)  # [B T N]
    arrays, structure = jax.tree.flatten(terms)
    learn = [jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays]

    def backward(number: jax.Array | None, query: jax.Array, key: jax.Array, value: jax.Array, *others: Any) -> tuple:
        *arrays, largest, mean, cotangent = others
        drop = _dropout(rate, dropout_key, number, terms)
        scores = _scores(query, key, mask_terms, jax.tree.unflatten(structure, arrays))
        exponentials = jnp.exp(scores - largest[..., None])
        weights = drop(exponentials).astype(value.dtype)
        value_gradient = jnp.einsum("BTNH,BNTS->BSNH", cotangent, weights)
        weights_gradient = jnp.einsum("BTNH,BSNH->BNTS", cotangent, value, preferred_element_type=jnp.float32)
        scores_gradient = exponentials * (drop(weights_gradient) - jnp.moveaxis(mean, 2, 1)[..., None])
        rounded = scores_gradient.astype(query.dtype)
        query_gradient = jnp.einsum("BNTS,BSNH->BTNH", rounded, key)
        key_gradient = jnp.einsum("BTNH,BNTS->BSNH", query, rounded)
        if not terms:
            return query_gradient, key_gradient, value_gradient

        def sum_of_terms(query: jax.Array, key: jax.Array, *learned: jax.Array) -> jax.Array:
            rest = iter(learned)
            own = [next(rest) if learns else array for array, learns in zip(arrays, learn, strict=True)]
            parts = (_term_scores(term, query, key, mask_terms) for term in jax.tree.unflatten(structure, own))
            return sum(jnp.broadcast_to(part, scores.shape) for part in parts)

        _, transposed = jax.vjp(sum_of_terms, query, key, *itertools.compress(arrays, learn))
        query_part, key_part, *array_gradients = transposed(scores_gradient)
        return query_gradient + query_part, key_gradient + key_part, value_gradient, *array_gradients

    inputs = (query, key, value, *arrays, largest, mean, cotangent)
    axes = _head_axes(terms)
    learned = itertools.compress(axes, learn)
    results = groups.map(backward, inputs, (2, 2, 2, *axes, 1, 2, 2), (2, 2, 2, *learned))
    array_gradients = iter(results[3:])
    terms_gradient = jax.tree.unflatten(structure, [next(array_gradients) if learns else None for learns in learn])
    return *results[:3], None, terms_gradient, None


def _head_axes(terms: tuple[BiasTerm, ...]) -> tuple[int | None, ...]:
    """Return the axis of the heads in each array of the terms, from 0; None for arrays that all heads share."""
    found = [axis for term in terms for axis in term.head_axes()]
    leaves = jax.tree.leaves(terms)
    return tuple(None if axis is None else leaf.ndim + axis for axis, leaf in zip(found, leaves, strict=True))


def _dropout(
    rate: float, key: jax.Array | None, number: jax.Array | None, terms: tuple[BiasTerm, ...]
) -> Callable[[jax.Array], jax.Array]:
    """Return the dropout function of one group of heads, for scores [B N T S].

    number: index of the group; None if there is one group.

    The hardware generator draws the mask as [B N S T], with the queries last. XLA then stores all arrays of scores in
    this order on a TPU, and a sum over keys adds whole registers. With the keys last it would move numbers within each
    register, and the forward pass of attention for 64 rows of 128 tokens would take twice as long.

    The mask is drawn with the keys last in three cases. If threefry draws it, as on a CPU, the other order costs time.
    With bias terms, the scores have the keys last, because the kernel that computes many terms (`shifted_product`)
    writes them in this order. With many keys for each query (`MANY_KEYS`), XLA stores the scores in this order, and
    would transpose the mask.
    """
    own = key if key is None or number is None else jax.random.fold_in(key, number)

    def drop(scores: jax.Array) -> jax.Array:
        *_, queries, keys = scores.shape
        queries_last = keys < MANY_KEYS * queries and not terms and not _draws_for_all_rows(key)
        return apply_dropout(scores, rate, own, axes=SCORES, transposed=queries_last)

    return drop


def _queries_first(x: jax.Array) -> jax.Array:
    """Transpose [B N T] to [B T N 1]."""
    return jnp.moveaxis(x, 1, 2)[..., None]


_attend.defvjp(_attend_forward, _attend_backward)


def blockwise(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask_terms: MaskTerms,
    terms: tuple[BiasTerm, ...],
    rate: float,
    dropout_key: jax.Array | None,
    block: int = BLOCK,
) -> jax.Array:
    """Compute the scores of one block of queries and one block of keys at a time, with an online softmax.

    Sources: Milakov and Gimelshein, arXiv 1805.02867, for the softmax; Rabe and Staats, arXiv 2112.05682, for the
    backward pass, which computes the scores again. Memory grows with T + S instead of T S, unless a bias term is an
    array [T S].

    block: number of queries and of keys in a block.
    """
    queries, keys = query.shape[1], key.shape[1]
    size, width = min(block, queries), min(block, keys)
    padded = 0, queries + -queries % size, 0, keys + -keys % width
    mask_terms, terms = mask_terms.slice_padded(*padded), tuple(term.slice_padded(*padded) for term in terms)
    query_blocks = split_blocks(query, size)
    wide, narrow = _widen((split_blocks(key, width), split_blocks(value, width)))
    wide_terms, narrow_terms = _widen(terms)

    def attend_block(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Return the context of a block of queries, [B size N H].

        The inputs are the index of the block and its queries [B size N H].
        """
        row, query = inputs
        key_blocks, value_blocks = narrow(wide)
        wide_query, narrow_query = _widen(query)

        def add_key_block(
            state: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...]
        ) -> tuple[tuple[jax.Array, ...], None]:
            """Add a block of keys to the state of the online softmax.

            The state is the largest score and the sum of exponentials so far [B N size], and the sum of values so far
            [B N size H].
            """
            largest, total, context = state
            column, key, value = inputs
            query, terms = narrow_query(wide_query), narrow_terms(wide_terms)
            cut = row * size, size, column * width, width
            scores = _scores(query, key, mask_terms.block(*cut), tuple(term.block(*cut) for term in terms))
            scores = jnp.where(column * width + jnp.arange(width) < keys, scores, -jnp.inf)
            # The softmax does not depend on the number subtracted from all scores, so no gradient passes through it.
            new = jax.lax.stop_gradient(jnp.maximum(largest, jnp.max(scores, axis=-1)))
            weights, fade = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
            total = total * fade + jnp.sum(weights, axis=-1)
            if dropout_key is not None:
                here = jax.random.fold_in(jax.random.fold_in(dropout_key, row), column)
                weights = apply_dropout(weights, rate, here, axes=SCORES)
            product = functools.partial(jnp.einsum, "BNTS,BSNH->BNTH")
            seen = float32_product(product, weights.astype(value.dtype), value)
            return (new, total, context * fade[..., None] + seen), None

        rows, _, heads, features = query.shape
        start = (
            jnp.full((rows, heads, size), -jnp.inf),
            jnp.zeros((rows, heads, size)),
            jnp.zeros((rows, heads, size, features)),
        )
        columns = jnp.arange(len(key_blocks))
        step = jax.checkpoint(add_key_block, prevent_cse=False)
        (_, total, context), _ = jax.lax.scan(step, start, (columns, key_blocks, value_blocks))
        return jnp.einsum("BNTH->BTNH", context / total[..., None]).astype(value.dtype)

    rows = jnp.arange(query_blocks.shape[0])
    contexts = jax.lax.map(jax.checkpoint(attend_block, prevent_cse=False), (rows, query_blocks))
    return join_blocks(contexts, queries)


def cudnn(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask_terms: MaskTerms,
    terms: tuple[BiasTerm, ...],
    rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """Compute attention in cuDNN's fused kernel, on an NVIDIA GPU and in bfloat16 (`jax.nn.dot_product_attention`).

    No scores are stored. Mask terms other than `Causal` alone become a dense mask, [B 1 T S]. The kernel needs as many
    queries as keys, in an even number. Otherwise, such as with a cache or a memory, `dense` computes the attention.

    Raises:
        UserError: dropout or bias terms are requested, which the kernel lacks.
    """
    if dropout_key is not None:
        raise UserError(
            f"Expected attention without dropout for --training.attention cudnn, found a rate of {rate}; set the "
            "model's dropout of attention to 0, or take --training.attention dense."
        )
    if terms:
        raise UserError(
            "Expected attention without terms of the scores, such as relative positions, for --training.attention "
            f"cudnn, found {type(terms[0]).__name__}; take --training.attention dense."
        )
    queries, keys = query.shape[1], key.shape[1]
    if queries != keys or queries % 2:
        return dense(query, key, value, mask_terms=mask_terms, terms=terms, rate=rate, dropout_key=None)
    if _is_causal(mask_terms):
        return fused_attention(query, key, value, is_causal=True)
    bias = mask_terms.bias(queries, keys)
    if bias is None:
        return fused_attention(query, key, value)
    # The kernel's mask has a row for each query, also where all queries see the same keys.
    mask = jnp.broadcast_to(bias == 0.0, (*bias.shape[:2], queries, keys))
    return fused_attention(query, key, value, mask=mask)


def _is_causal(mask_terms: MaskTerms) -> bool:
    """Return whether `Causal`, without a prefix, is the only mask term, and queries and keys begin at the same
    position.
    """
    conditions, offsets = mask_terms.conditions, (mask_terms.query_offset, mask_terms.key_offset)
    alone = len(conditions) == 1 and isinstance(conditions[0], Causal) and conditions[0].prefix_lengths is None
    return alone and all(isinstance(offset, int) for offset in offsets) and offsets[0] == offsets[1]


fused_attention = functools.partial(jax.nn.dot_product_attention, scale=1.0, implementation="cudnn")
"""Function that calls cuDNN's kernel through JAX, for queries that are already scaled."""

BACKENDS = {"dense": within_reach(dense), "blockwise": within_reach(blockwise), "cudnn": within_reach(cudnn)}
"""Dict from name to backend. `Execution.attention` is one of the names."""
