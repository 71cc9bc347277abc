"""The attention of Longformer's language model: dilated windows of earlier tokens, with scores of distances.

Without a cache, a row is cut into d rows of every d-th token, and each of these into bands
(plmjax/models/longformer/dilation.py, plmjax/layers/attention/bands.py). Time and memory of T tokens grow with T w for
a window of w tokens. With a memory of M tokens before the T tokens, all M + T keys are scored, and keys whose distance
is not a multiple of d are hidden. T is 1 in generation.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.mask_terms import Causal, MaskTerms, SameSegment, Window
from plmjax.layers.attention.backends import BACKENDS, weights
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.attention.recording import record
from plmjax.layers.attention.relative_shift import ContentBias, PositionalScores
from plmjax.models.longformer.dilation import EverySoMany, cut, join


class Documents(NamedTuple):
    """The document of each token; 0 for padding and for empty places of a memory.

    queries: int [B T].
    keys: int [B M+T], the tokens of the memory first.
    """

    queries: jax.Array
    keys: jax.Array


class LongformerDecoderAttention(MultiHeadAttention):
    """Attention to the token itself and to `window` tokens before it, with Transformer-XL's scores of distances.

    dilation: distance between adjacent keys of the last `dilated_heads` heads.
    """

    window: int = 1
    dilation: int = 1
    dilated_heads: int = 0

    def setup(self) -> None:
        super().setup()
        names, shape = ("embed", "heads", "head"), (self.features, self.num_heads, self.size)
        self.relative_kernel = self.param(
            "relative_kernel", nn.with_logical_partitioning(self.kernel_init, names), shape
        )

    def __call__(
        self,
        x: jax.Array,
        documents: Documents,
        table: jax.Array,
        *,
        biases: tuple[jax.Array, jax.Array],
        past: KeyValues | None,
    ) -> tuple[jax.Array, KeyValues]:
        """Attend from [B T D] to [B T D], and return the keys and values [B M+T N H].

        Args:
            table: the sinusoids of distances, from the farthest to 0, [G R D] for G shards of the rows.
            biases: u and v, float32 [N H].
            past: keys and values of the memory, [B N H M]; None without one.
        """
        query, seen = self.scaled(self.query(x)), self.key_values(x)
        if past is not None:
            seen = jax.tree.map(_after, past, seen)
        near = self.num_heads if self.dilation == 1 else self.num_heads - self.dilated_heads
        parts = [
            (heads, step)
            for heads, step in ((slice(0, near), 1), (slice(near, self.num_heads), self.dilation))
            if heads.start < heads.stop
        ]
        given = {"query": query, "seen": seen, "documents": documents, "table": table, "biases": biases}
        contexts = [self._attend_heads(*part, **given) for part in parts]
        record(self.name, lambda: jnp.concatenate([self._weights(*part, **given) for part in parts], axis=1))
        return self.output(jnp.concatenate(contexts, axis=2)), seen

    def _attend_heads(
        self,
        heads: slice,
        dilation: int,
        query: jax.Array,
        *,
        seen: KeyValues,
        documents: Documents,
        table: jax.Array,
        biases: tuple[jax.Array, jax.Array],
    ) -> jax.Array:
        """Return the context of heads with one dilation, [B T n H]."""
        length = query.shape[1]
        apart = 1 if seen.keys.shape[1] > length else dilation  # with a memory, rows are not cut
        query, keys, values, mask_terms, terms = self._cut(
            heads, dilation, apart, query=query, seen=seen, documents=documents, table=table, biases=biases
        )
        backend = BACKENDS[self.execution.attention]
        context = backend(query, keys, values, mask_terms=mask_terms, terms=terms, rate=0.0, dropout_key=None)
        return join(context, apart, length)

    def _weights(self, heads: slice, dilation: int, **given: Any) -> jax.Array:
        """Return the weights of heads with one dilation in whole rows, float32 [B n T M+T]."""
        query, keys, _, *how = self._cut(heads, dilation, 1, **given)
        return weights(query, keys, *how)

    def _cut(
        self,
        heads: slice,
        dilation: int,
        apart: int,
        *,
        query: jax.Array,
        seen: KeyValues,
        documents: Documents,
        table: jax.Array,
        biases: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array, MaskTerms, tuple[BiasTerm, ...]]:
        """Return the inputs of a backend for some heads: queries, keys and values [B d, T/d, n, H], and all terms.

        apart: d, the number of rows into which a row is cut.
        """
        memory = seen.keys.shape[1] - query.shape[1]
        step = dilation // apart  # the distance between adjacent keys in such a row
        projections = (query, seen.keys, seen.values)
        query, keys, values = (cut(each[:, :, heads], apart) for each in projections)
        places = SameSegment(cut(documents.queries, apart), cut(documents.keys, apart))
        conditions = (places, Causal(), Window(self.window * step, 0), *([EverySoMany(step)] if step > 1 else []))
        u, v = (each[heads] * self.size**-0.5 for each in biases)
        terms = (
            ContentBias(u),
            self._positional(table, v, heads, apart=apart, step=step, queries=query.shape[1], keys=keys.shape[1]),
        )
        return query, keys, values, MaskTerms(conditions, query_offset=memory), terms

    def _positional(
        self, table: jax.Array, v: jax.Array, heads: slice, *, apart: int, step: int, queries: int, keys: int
    ) -> PositionalScores:
        """Return the term of the distances 0, d, ... within the window and the row; d = `apart`."""
        reach = min(self.window * step, keys - 1)
        rows = table[:, table.shape[1] - 1 - apart * reach :: apart]
        kernel = self.relative_kernel[:, heads].astype(rows.dtype)
        vectors = jnp.einsum("GRD,DNH->GRNH", rows, kernel)
        term = PositionalScores(v, vectors, reach + 1 - (keys - queries), self.execution.kernels)
        return term if reach == keys - 1 else term.slice_padded(0, queries, 0, keys)


def _after(past: jax.Array, new: jax.Array) -> jax.Array:
    """Concatenate keys or values [B N H M] and [B T N H] to [B M+T N H]."""
    return jnp.concatenate([jnp.einsum("BNHM->BMNH", past), new], axis=1)
