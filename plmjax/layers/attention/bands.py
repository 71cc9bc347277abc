"""Attention in bands: each block of queries reads only the keys within its window.

Time and memory grow with T x window instead of T x S. The keys of a block of queries are the keys of the block, and
those before and after it that are within the window:

                             queries              [0 1 2 3] [4 5 6 7] [8 9 . .]
    keys of the second block, 2 before and 2 after:     [2 3 4 5 6 7 8 9]

A band is as long as a whole number of blocks. So bands are made of adjacent slices of the keys, and there is no gather
(Beltagy et al., arXiv 2004.05150, section 3.2, cut "sliding chunks" in a similar way).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attention_arrays import slice_padded
from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.mask_terms import MaskTerm, MaskTerms
from plmjax.layers.partitioning import shard_counts

Backend = Callable[..., jax.Array]
"""A function with the arguments and the result that `plmjax.layers.attention.backends` describes."""
MIN_BLOCK_SIZE, MAX_BLOCK_SIZE = 128, 512
"""Minimum and maximum number of queries in a block. Within these limits it is the length of the longer side of the
window, rounded up to a multiple of `MIN_BLOCK_SIZE`.
"""
TILE = 16
"""Number of keys in a tile of bfloat16 in the memory of a TPU. A band begins a multiple of this many keys before its
queries if that does not make it wider.
"""
MAX_BYTES_TOGETHER = 2**24
"""Maximum number of bytes of float32 scores when several blocks are computed together.

With one row of 8,192 tokens and a window of 129 keys, eight blocks together take a fifth less time on a TPU v5e than
one after the other. With eight rows, one block already fills the device (benchmarks/planned_attention.py).
"""


@flax.struct.dataclass
class Exists(MaskTerm):
    """The key belongs to the row, not to the padding of a band.

    first, end: the first position of the row and the position after its last; int scalars.
    """

    first: int | jax.Array
    end: int | jax.Array

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        return ((key_positions >= self.first) & (key_positions < self.end))[None]


class Bands(NamedTuple):
    """The sizes of blocks of queries and of their bands of keys.

    size: number of queries in a block.
    blocks: number of blocks.
    width: number of keys in a band, a multiple of `size`.
    start: index of the first key of the first band; below 0 if keys are padded on the left.
    """

    size: int
    blocks: int
    width: int
    start: int

    @classmethod
    def of(cls, mask_terms: MaskTerms, queries: int, keys: int) -> Self | None:
        """Return the bands, or None if the window is not static or bands save no computation."""
        offsets = mask_terms.query_offset, mask_terms.key_offset
        if None in mask_terms.reach or not all(isinstance(offset, int) for offset in offsets):
            return None
        before, after = (max(limit, 0) for limit in mask_terms.reach)
        size = min(MIN_BLOCK_SIZE * max(1, math.ceil(max(before, after) / MIN_BLOCK_SIZE)), MAX_BLOCK_SIZE)
        width = (1 + math.ceil((before + after) / size)) * size
        whole_tiles = math.ceil(before / TILE) * TILE
        before = whole_tiles if size + whole_tiles + after <= width else before
        start = mask_terms.query_offset - mask_terms.key_offset - before
        return cls(size, math.ceil(queries / size), width, start) if width < keys else None

    @property
    def keys(self) -> int:
        """Number of keys of all bands; a key in several bands counts once."""
        return self.width + (self.blocks - 1) * self.size

    def together(self, shape: tuple[int, ...]) -> int | None:
        """Return the number of blocks to compute at once, a divisor of their number; None to compute one at a time.

        shape: [B T N H] of the queries.
        """
        rows, _, heads, _ = shape
        (shards,) = shard_counts((rows,), ("batch",))
        most = max(1, MAX_BYTES_TOGETHER // (4 * rows // shards * heads * self.size * self.width))
        return next((count for count in range(min(most, self.blocks), 1, -1) if self.blocks % count == 0), None)

    def cut_queries(self, x: jax.Array) -> jax.Array:  # [B T N H] -> [blocks B size N H]
        """Return the blocks of queries."""
        return split_blocks(x, self.size)

    def cut_keys(self, x: jax.Array) -> jax.Array:  # [B S N H] -> [blocks B width N H]
        """Return the band of each block of queries."""
        # The heads are put before the keys, as a TPU multiplies them. It then transposes every key once, not once for
        # each of its bands.
        x = jnp.moveaxis(x, 1, -2)  # [B N S H]
        x = slice_padded(x, x.ndim - 2, self.start, self.keys)
        parts = []
        for first in range(0, self.width, self.size):
            part = x[..., first : first + self.blocks * self.size, :]
            part = part.reshape(*part.shape[:-2], self.blocks, self.size, part.shape[-1])
            parts.append(jnp.moveaxis(part, -3, 0))
        return jnp.moveaxis(jnp.concatenate(parts, axis=-2), -2, 2)


def within_reach(backend: Backend) -> Backend:
    """Return `backend`, limited to the window of the mask terms if the window is static.

    For a query that sees no key, such as padding, the result is a mean over the values of its band, not of its row.
    """

    @functools.wraps(backend)
    def attend(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask_terms: MaskTerms,
        terms: tuple[BiasTerm, ...],
        rate: float,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        bands = Bands.of(mask_terms, query.shape[1], key.shape[1])
        if bands is None:
            return backend(query, key, value, mask_terms=mask_terms, terms=terms, rate=rate, dropout_key=dropout_key)
        first = mask_terms.key_offset
        around = 0, bands.blocks * bands.size, bands.start, bands.keys
        all_bands = mask_terms.also(Exists(first, first + key.shape[1])).slice_padded(*around)
        padded_terms = tuple(term.slice_padded(*around) for term in terms)

        def attend_block(
            inputs: tuple[jax.Array, ...],
        ) -> jax.Array:  # [B size N H], [B width N H] twice -> [B size N H]
            number, query_offset, key_offset, query, key, value = inputs
            cut = number * bands.size, bands.size, number * bands.size, bands.width
            block_key = None if dropout_key is None else jax.random.fold_in(dropout_key, number)
            block_terms = tuple(term.block(*cut) for term in padded_terms)
            seen = all_bands.block(*cut).replace(query_offset=query_offset, key_offset=key_offset)
            return backend(query, key, value, mask_terms=seen, terms=block_terms, rate=rate, dropout_key=block_key)

        numbers = jnp.arange(bands.blocks)
        # The backward pass reads these inputs again. If the loop computed the offsets, it would have to store them.
        offsets = (offset + numbers * bands.size for offset in (all_bands.query_offset, all_bands.key_offset))
        inputs = (numbers, *offsets, bands.cut_queries(query), bands.cut_keys(key), bands.cut_keys(value))
        contexts = jax.lax.map(attend_block, inputs, batch_size=bands.together(query.shape))
        return join_blocks(contexts, query.shape[1])

    return attend


def split_blocks(x: jax.Array, size: int) -> jax.Array:
    """Split [B T N H] into [blocks B size N H]; the last block is padded with zeros."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0), (0, 0)))
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


def join_blocks(x: jax.Array, length: int) -> jax.Array:
    """Join [blocks B size N H] to [B T N H], without the padding. length: T."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(len(x), -1, *x.shape[3:])[:, :length]
