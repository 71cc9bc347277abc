"""XLNet's attention: the mask terms of the order, the bias term of segments, and the attention of both streams.

Source: Yang et al., arXiv 1906.08237, sections 2.3 to 2.5.
"""

import functools
import math
from typing import Any, NamedTuple, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.mask_terms import MaskTerm, MaskTerms
from plmjax.contracts.parameters import as_bias
from plmjax.layers.attention.backends import weights
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.attention.recording import record
from plmjax.layers.attention.relative_shift import ContentBias, PositionalScores
from plmjax.layers.product import float32_product
from plmjax.layers.projection import Projection

QUERY_STREAM = "query_stream"
"""Name of the recorded weights of the query stream."""


@flax.struct.dataclass
class Precedes(MaskTerm):
    """The key precedes the query in the order of the prediction.

    ranks: int [B S], the place of each key in the order; several keys may have the same.
    limits: int [B T]; a query sees the keys whose rank is below its limit.
    """

    ranks: jax.Array = axes("batch", "keys")
    limits: jax.Array = axes("batch", "queries")

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        return self.ranks[:, None, :] < self.limits[:, :, None]


@flax.struct.dataclass
class OrItself(MaskTerm):
    """`condition` holds, or the key is the query itself; so every query sees a key."""

    condition: MaskTerm

    def change_axis(self, name: str, change: Any) -> Self:
        return self.replace(condition=self.condition.change_axis(name, change))

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        itself = query_positions[..., None] == key_positions
        return self.condition.visible(query_positions, key_positions) | itself


@flax.struct.dataclass
class SegmentScores(BiasTerm):
    """(q_i + w) . s, with one s for keys of the query's segment and another one for all other keys (section 2.5).

    vectors: w, float32 [N H], multiplied by the scale of the queries.
    table: s of the same and of another segment, float32 [2 N H].
    query_types, key_types: int [B T] and [B S], the segment of each token.
    """

    vectors: jax.Array = axes("heads", None)
    table: jax.Array = axes(None, "heads", None)
    query_types: jax.Array = axes("batch", "queries")
    key_types: jax.Array = axes("batch", "keys")

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term, float32 [B N T S]."""
        product = functools.partial(jnp.einsum, "BTNH,GNH->BNTG")
        found = float32_product(product, query + self.vectors.astype(query.dtype), self.table.astype(query.dtype))
        same = self.query_types[:, None, :, None] == self.key_types[:, None, None, :]
        return jnp.where(same, found[..., :1], found[..., 1:])


class Inputs(NamedTuple):
    """The inputs of attention that are the same for all layers.

    distances: sinusoids of R distances, [B R D], or [1 R D] for all rows.
    types: the segments of the queries and of the keys, int [B T] and [B S], or None.
    content, query: the mask terms of each stream.
    targets: one-hot [B P T], the position of each prediction, or None.
    """

    distances: jax.Array
    types: tuple[jax.Array, jax.Array] | None
    content: MaskTerms
    query: MaskTerms
    targets: jax.Array | None


class TwoStreamAttention(MultiHeadAttention):
    """Attention of both streams to the same keys and values, with u, v, w, r and s of models/xlnet/xlnet.py."""

    def setup(self) -> None:
        super().setup()
        heads, init = (self.num_heads, self.size), self.kernel_init
        bias_init = as_bias(init, ("heads", "head"))
        self.distance = Projection(heads, ("embed", "heads", "head"), init, self.execution.dtype, use_bias=False)
        self.content_bias = self.param("content_bias", bias_init, heads)
        self.distance_bias = self.param("distance_bias", bias_init, heads)
        self.segment_bias = self.param("segment_bias", bias_init, heads)
        segments_init = nn.with_logical_partitioning(init, (None, "heads", "head"))
        self.segments = self.param("segments", segments_init, (2, *heads))

    def terms(self, inputs: Inputs, queries: int) -> tuple[BiasTerm, ...]:
        """Return the bias terms of the scores for `queries` queries."""
        scale = 1.0 / math.sqrt(self.size)
        bias, table = scale * self.distance_bias, self.distance(inputs.distances)
        positional = PositionalScores(bias, table, queries, self.execution.kernels)
        terms = (ContentBias(scale * self.content_bias), positional)
        if inputs.types is None:
            return terms
        return *terms, SegmentScores(scale * self.segment_bias, self.segments, *inputs.types)

    def predict(
        self,
        queries: jax.Array,
        targets: jax.Array,
        key_values: KeyValues,
        *,
        mask_terms: MaskTerms,
        terms: tuple[BiasTerm, ...],
        deterministic: bool,
    ) -> jax.Array:
        """Attend from the positions of the predictions, for queries [B P D]; other arguments as in `attend`.

        targets: one-hot [B P T]. Queries are moved to their positions, where the shift of distances expects them, and
        results are moved back.
        """
        moved = jnp.einsum("BPNH,BPT->BTNH", self.scaled(self.query(queries)), targets)
        context = self.context(moved, key_values, mask_terms, terms=terms, deterministic=deterministic)
        record(
            QUERY_STREAM,
            lambda: jnp.einsum("BNTS,BPT->BNPS", weights(moved, key_values.keys, mask_terms, terms), targets),
        )
        return self.output(jnp.einsum("BTNH,BPT->BPNH", context, targets))
