"""What attention may see, as data: which keys are visible to which queries.

`Visibility` is a tuple of conditions. A system may add conditions of its own, in its own file. Their arrays are small,
[B T] or [B S] at most. A backend of attention makes the dense form, [B 1 T S], or one block of it at a time.
"""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attention_arrays import AttentionArrays, axes

MASKED = -10000.0
"""Added to the score of a hidden key, as in google-research/bert modeling.py. Its exponential is 0 in float32 beside
the score of a visible key; where every key is hidden, the scores still differ, as in the released code."""
EXCLUDED = -1e30
"""Replaces the score of a choice that is excluded: a head, a label, a place in a text. Its exponential is 0 in float32
beside any other score, and it is finite, so that no NaN arises where every choice is excluded. Where one choice
always remains, -inf serves as well."""


class Condition(AttentionArrays):
    """A condition under which a query sees a key: a dataclass of `flax.struct`, whose `visible` says where it holds.

    Fields for arrays with an axis of queries or keys are made with `axes`.
    """

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The most positions before and after a query at which it may see a key; None without a limit.

        Attention computes nothing outside these limits where both are known. They must not depend on arrays.
        """
        return None, None

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Where the condition holds: bool [T S] or [B T S].

        Args:
            query_positions: int [T] or [B T], each one above the last.
            key_positions: int [S], each one above the last.
        """
        raise NotImplementedError(f"{type(self).__name__} must say where it holds.")

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """What is added to the scores: float32 that broadcasts to [B 1 T S]."""
        visible = self.visible(query_positions, key_positions)
        return jnp.where(visible[None] if visible.ndim == 2 else visible, 0.0, MASKED)[:, None]


@flax.struct.dataclass
class KeyMask(Condition):
    """The key is a token: not padding, and not an empty place of a memory.

    mask: [B S], 1 for keys that may be seen, else 0.
    """

    mask: jax.Array = axes("batch", "keys")

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Where the mask is not 0."""
        return self.mask[:, None] > 0

    def bias(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """A product instead of a choice, as in google-research/bert modeling.py."""
        return MASKED * (1.0 - self.mask[:, None, None, :].astype(jnp.float32))


@flax.struct.dataclass
class SameSegment(Condition):
    """The query and the key belong to the same packed sequence.

    query_segments, key_segments: int [B T] and [B S], the number of each token's sequence; 0 for padding.
    """

    query_segments: jax.Array = axes("batch", "queries")
    key_segments: jax.Array = axes("batch", "keys")

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Equal and above 0."""
        own, others = self.query_segments[:, :, None], self.key_segments[:, None, :]
        return (own == others) & (others > 0)


@flax.struct.dataclass
class Causal(Condition):
    """The key does not stand after the query, or it belongs to the prefix of its row.

    prefix_lengths: int [B], the number of first positions that every query sees; None without a prefix.
    """

    prefix_lengths: jax.Array | None = None

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """No key after the query, unless there is a prefix."""
        return None, 0 if self.prefix_lengths is None else None

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """The key's position is not above the query's, or below the length of the prefix."""
        visible = key_positions - query_positions[..., None] <= 0
        if self.prefix_lengths is not None:
            visible |= key_positions < self.prefix_lengths[:, None, None]
        return visible


@flax.struct.dataclass
class Window(Condition):
    """The key stands near the query.

    before, after: how many positions before and after the query a key may be. Python ints keep attention from computing
    the rest; int scalars, such as those of a loop over layers, hide it.
    """

    before: int | jax.Array
    after: int | jax.Array

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The window, where it is known while the program is traced."""
        return tuple(limit if isinstance(limit, int) else None for limit in (self.before, self.after))

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """The distance lies within the window."""
        distance = key_positions - query_positions[..., None]
        return (-self.before <= distance) & (distance <= self.after)


@flax.struct.dataclass
class Visibility:
    """A query sees a key if all conditions hold; without conditions it sees all keys.

    query_offset: the position of the first query, int or int [B]: the length of a memory or of a cache before it.
    key_offset: the position of the first key, int or int scalar.
    """

    conditions: tuple[Condition, ...] = ()
    query_offset: int | jax.Array = 0
    key_offset: int | jax.Array = 0

    @classmethod
    def of_rows(
        cls,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        query_segment_ids: jax.Array | None = None,
    ) -> Self:
        """Rows that attend to themselves, or to the rows of a source.

        Args:
            attention_mask: [B S], 1 for real keys; None where all are.
            segment_ids: int [B S], the packed sequence of each key; None without packing.
            query_segment_ids: int [B T], those of the queries where these are not the keys.
        """
        conditions = []
        if segment_ids is not None:
            conditions.append(SameSegment(segment_ids if query_segment_ids is None else query_segment_ids, segment_ids))
        if attention_mask is not None:
            conditions.append(KeyMask(attention_mask))
        return cls(tuple(conditions))

    def also(self, *conditions: Condition) -> Self:
        """With further conditions."""
        return self.replace(conditions=(*self.conditions, *conditions))

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The narrowest limits of all conditions, as `Condition.reach`."""
        sides = zip(*(condition.reach for condition in self.conditions), strict=True) if self.conditions else ((), ())
        return tuple(min((limit for limit in side if limit is not None), default=None) for side in sides)

    def query_positions(self, length: int) -> jax.Array:
        """int [T], or [B T] where every row has an offset of its own."""
        return jnp.asarray(self.query_offset)[..., None] + jnp.arange(length)

    def key_positions(self, length: int) -> jax.Array:
        """int [S]."""
        return self.key_offset + jnp.arange(length)

    def bias(self, queries: int, keys: int) -> jax.Array | None:
        """What is added to attention scores: float32 that broadcasts to [B 1 T S], `MASKED` for each broken condition.

        None without conditions.
        """
        own, others = self.query_positions(queries), self.key_positions(keys)
        terms = [condition.bias(own, others) for condition in self.conditions]
        return sum(terms[1:], terms[0]) if terms else None

    def padded(self, queries: int, keys: int) -> Self:
        """The same for rows with so many more queries and keys behind the others."""
        return self.replace(conditions=tuple(condition.padded(queries, keys) for condition in self.conditions))

    def block(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array, keys: int) -> Self:
        """The same for a block of neighbouring queries and a block of neighbouring keys."""
        blocks = tuple(condition.block(first_query, queries, first_key, keys) for condition in self.conditions)
        return self.replace(
            conditions=blocks, query_offset=self.query_offset + first_query, key_offset=self.key_offset + first_key
        )
