"""What attention may see, as data: which keys are visible to which queries.

The conditions are small arrays, [B T] or [B S] at most. The dense form, [B 1 T S], is made by a backend of attention
that wants it; another one asks for a block of it at a time.
"""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp

MASKED = -10000.0
"""What is added to a score that must not count, as in google-research/bert modeling.py; exp of it is 0 in float32."""


@flax.struct.dataclass
class Visibility:
    """A query sees a key iff every condition that is set holds; without conditions it sees all keys.

    Key j has the position j; query i has the position query_offset + i.

    key_mask: [B S], 1 for keys that may be seen, 0 for padding and for a memory that is not filled.
    query_segments, key_segments: int [B T] and [B S], given together: the two must be equal and above 0.
    causal: a key's position must not be above the query's.
    prefix_lengths: int [B]; an exception from `causal`: every query sees this many first keys of its row.
    window: (before, after), ints or int scalars: how many positions before and after the query a key may be.
    query_offset: int, or int [B]: the number of keys before the first query, the length of a memory or of a cache.
    """

    key_mask: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    prefix_lengths: jax.Array | None = None
    window: tuple[int | jax.Array, int | jax.Array] | None = None
    query_offset: int | jax.Array = 0

    @classmethod
    def of_rows(cls, attention_mask: jax.Array | None, segment_ids: jax.Array | None) -> Self:
        """Rows that attend to themselves: [B T], 1 for real tokens; int [B T], the packed sequence of each token."""
        return cls(key_mask=attention_mask, query_segments=segment_ids, key_segments=segment_ids)

    def query_positions(self, length: int) -> jax.Array:
        """int [T], or [B T] where every row has an offset of its own."""
        return jnp.asarray(self.query_offset)[..., None] + jnp.arange(length)

    def bias(self, queries: int, keys: int) -> jax.Array | None:
        """What is added to attention scores: float32 that broadcasts to [B 1 T S], `MASKED` for each broken condition.

        None where nothing can be hidden.
        """
        terms = []
        if self.query_segments is not None:
            own, others = self.query_segments[:, :, None], self.key_segments[:, None, :]
            terms.append(_hidden_unless((own == others) & (others > 0)))
        if self.key_mask is not None:
            terms.append(MASKED * (1.0 - self.key_mask[:, None, None, :].astype(jnp.float32)))
        if self.causal or self.window is not None:
            distance = jnp.arange(keys) - self.query_positions(queries)[..., None]  # [T S] or [B T S]
        if self.causal:
            visible = distance <= 0
            if self.prefix_lengths is not None:
                visible |= jnp.arange(keys) < self.prefix_lengths[:, None, None]
            terms.append(_hidden_unless(visible))
        if self.window is not None:
            before, after = self.window
            terms.append(_hidden_unless((-before <= distance) & (distance <= after)))
        return sum(terms[1:], terms[0]) if terms else None

    def padded(self, queries: int, keys: int) -> Self:
        """The same for rows padded by a number of `queries` and a number of `keys`."""
        return self.replace(
            key_mask=_filled(self.key_mask, keys),
            query_segments=_filled(self.query_segments, queries),
            key_segments=_filled(self.key_segments, keys),
        )

    def block(self, first_query: jax.Array, queries: int, first_key: jax.Array, keys: int) -> Self:
        """The same for a block of neighbouring queries and a block of neighbouring keys."""
        return self.replace(
            key_mask=_cut(self.key_mask, first_key, keys),
            query_segments=_cut(self.query_segments, first_query, queries),
            key_segments=_cut(self.key_segments, first_key, keys),
            prefix_lengths=None if self.prefix_lengths is None else self.prefix_lengths - first_key,
            query_offset=self.query_offset + first_query - first_key,
        )


def _hidden_unless(visible: jax.Array) -> jax.Array:
    """bool [T S] or [B T S] -> float32 [1 1 T S] or [B 1 T S]."""
    return jnp.where(visible[None] if visible.ndim == 2 else visible, 0.0, MASKED)[:, None]


def _filled(x: jax.Array | None, count: int) -> jax.Array | None:
    return None if x is None else jnp.pad(x, ((0, 0), (0, count)))


def _cut(x: jax.Array | None, first: jax.Array, count: int) -> jax.Array | None:
    return None if x is None else jax.lax.dynamic_slice_in_dim(x, first, count, axis=1)
