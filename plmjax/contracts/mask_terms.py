"""Mask terms: the keys that each query sees, as data.

`MaskTerms` is a tuple of conditions. A system may define further conditions in its own file. Their arrays are small,
[B T] or [B S] at most. A backend of attention makes the dense mask, [B 1 T S], or one block of it at a time.
"""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attention_arrays import AttentionArrays, axes

MASKED = -10000.0
"""Number added to the score of a hidden key, as in google-research/bert modeling.py. In float32 the weight of a hidden
key is 0 beside a visible key. If every key is hidden, the scores still differ, as in the released code.
"""
EXCLUDED = -1e30
"""Score of an excluded choice: a head, a label or a position in a text. In float32 its probability is 0 beside any
other score. It is finite, so the softmax is not NaN if every choice is excluded. If at least one choice always remains,
-inf works as well.
"""


class MaskTerm(AttentionArrays):
    """A condition under which a query sees a key: a dataclass of `flax.struct`. Where it holds, `visible` is true.

    Fields for arrays with an axis of queries or keys are made with `axes`.
    """

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The maximum distances, in positions, of a visible key before and after its query; None without a limit.

        If both limits are known, attention computes nothing outside them. They must not depend on arrays.
        """
        return None, None

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Return True where the condition holds: bool that broadcasts to [T S] or [B T S].

        Args:
            query_positions: int [T] or [B T], strictly increasing.
            key_positions: int [S], strictly increasing.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `visible`.")

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Return the term that is added to the scores: float32 that broadcasts to [B 1 T S]."""
        visible = self.visible(query_positions, key_positions)
        return jnp.where(visible[None] if visible.ndim == 2 else visible, 0.0, MASKED)[:, None]


@flax.struct.dataclass
class KeyMask(MaskTerm):
    """The key is a token: not padding, and not an empty position of a memory.

    mask: [B S], 1 for visible keys, else 0.
    """

    mask: jax.Array = axes("batch", "keys")

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Return True where the mask is not 0."""
        return self.mask[:, None] > 0

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Return `MASKED` times 1 - mask, as google-research/bert modeling.py does, instead of a selection."""
        return MASKED * (1.0 - self.mask[:, None, None, :].astype(jnp.float32))


@flax.struct.dataclass
class SameSegment(MaskTerm):
    """The query and the key belong to the same packed sequence.

    query_segments, key_segments: int [B T] and [B S], the number of each token's sequence; 0 for padding.
    """

    query_segments: jax.Array = axes("batch", "queries")
    key_segments: jax.Array = axes("batch", "keys")

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Return True where both segments are equal and above 0."""
        own, others = self.query_segments[:, :, None], self.key_segments[:, None, :]
        return (own == others) & (others > 0)


@flax.struct.dataclass
class Causal(MaskTerm):
    """The key is not after the query, or it belongs to the prefix of the row.

    prefix_lengths: int [B], the number of first positions of a row that all its queries see; None without a prefix.
    """

    prefix_lengths: jax.Array | None = None

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """No key after the query, unless there is a prefix."""
        return None, 0 if self.prefix_lengths is None else None

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Return True where the position of the key is at most that of the query, or within the prefix."""
        visible = key_positions - query_positions[..., None] <= 0
        if self.prefix_lengths is not None:
            visible |= key_positions < self.prefix_lengths[:, None, None]
        return visible


@flax.struct.dataclass
class Window(MaskTerm):
    """The key is near the query.

    before, after: largest distance of a visible key before and after its query. With Python ints, attention does not
        compute the scores of keys outside the window. With int arrays, such as those of a loop over layers, it computes
        and hides them.
    """

    before: int | jax.Array
    after: int | jax.Array

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """`before` and `after`; None for a limit that is an array."""
        return tuple(limit if isinstance(limit, int) else None for limit in (self.before, self.after))

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        distance = key_positions - query_positions[..., None]
        return (-self.before <= distance) & (distance <= self.after)


@flax.struct.dataclass
class MaskTerms:
    """A tuple of conditions. A query sees a key if all conditions hold; without conditions it sees all keys.

    query_offset: int or int [B], the position of the first query: the length of the memory or the cache before it.
    key_offset: int or int scalar, the position of the first key.
    """

    conditions: tuple[MaskTerm, ...] = ()
    query_offset: int | jax.Array = 0
    key_offset: int | jax.Array = 0

    @classmethod
    def of_rows(
        cls,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        query_segment_ids: jax.Array | None = None,
    ) -> Self:
        """Return the mask terms of rows that attend to themselves, or to the rows of a source.

        Args:
            attention_mask: [B S], 1 for real keys; None if all keys are real.
            segment_ids: int [B S], the packed sequence of each key; None without packing.
            query_segment_ids: int [B T], the packed sequence of each query if the queries are not the keys.
        """
        conditions = []
        if segment_ids is not None:
            conditions.append(SameSegment(segment_ids if query_segment_ids is None else query_segment_ids, segment_ids))
        if attention_mask is not None:
            conditions.append(KeyMask(attention_mask))
        return cls(tuple(conditions))

    def also(self, *conditions: MaskTerm) -> Self:
        """Return these mask terms with further conditions."""
        return self.replace(conditions=(*self.conditions, *conditions))

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The narrowest limits of all conditions, as in `MaskTerm.reach`."""
        sides = zip(*(condition.reach for condition in self.conditions), strict=True) if self.conditions else ((), ())
        return tuple(min((limit for limit in side if limit is not None), default=None) for side in sides)

    def query_positions(self, length: int) -> jax.Array:
        """Return the positions of the queries, int [T], or [B T] if every row has its own offset."""
        return jnp.asarray(self.query_offset)[..., None] + jnp.arange(length)

    def key_positions(self, length: int) -> jax.Array:
        """Return the positions of the keys, int [S]."""
        return self.key_offset + jnp.arange(length)

    def bias(self, queries: int, keys: int) -> jax.Array | None:
        """Return the array that is added to attention scores, or None without conditions.

        It is float32 that broadcasts to [B 1 T S]. Each condition adds 0 where it holds and `MASKED` elsewhere.
        """
        own, others = self.query_positions(queries), self.key_positions(keys)
        terms = [condition.bias(own, others) for condition in self.conditions]
        return sum(terms[1:], terms[0]) if terms else None

    def slice_padded(self, first_query: int, queries: int, first_key: int, keys: int) -> Self:
        """Return the mask terms of a range of queries and a range of keys, which may lie outside the rows."""
        return self._moved(
            first_query,
            first_key,
            tuple(condition.slice_padded(first_query, queries, first_key, keys) for condition in self.conditions),
        )

    def block(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array, keys: int) -> Self:
        """Return the same mask terms for a block of consecutive queries and a block of consecutive keys."""
        return self._moved(
            first_query,
            first_key,
            tuple(condition.block(first_query, queries, first_key, keys) for condition in self.conditions),
        )

    def _moved(
        self, first_query: int | jax.Array, first_key: int | jax.Array, conditions: tuple[MaskTerm, ...]
    ) -> Self:
        offsets = self.query_offset + first_query, self.key_offset + first_key
        return self.replace(conditions=conditions, query_offset=offsets[0], key_offset=offsets[1])
