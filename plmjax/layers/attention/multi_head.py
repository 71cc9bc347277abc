"""Multi-head scaled dot-product attention (Vaswani et al., arXiv 1706.03762).

One class serves self-attention, cross-attention, attention to a memory, and decoding with a cache. Queries attend to
projected keys and values from any source. `MaskTerms` define the keys that each query sees. `Execution.attention` names
the backend of `plmjax.layers.attention.backends` that computes the attention.
"""

import functools
import math

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.layers.attention.backends import BACKENDS, weights
from plmjax.layers.attention.recording import record
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import layer_projection


@flax.struct.dataclass
class KeyValues:
    """Projected keys and values, each [B S N H]."""

    keys: jax.Array
    values: jax.Array


class MultiHeadAttention(nn.Module):
    """softmax(scale Q K^T + terms) V, followed by the output projection.

    features: D, the size of the queries and of the result.
    num_heads: N.
    dropout: dropout rate of attention probabilities.
    kernel_init: initializer of the projections.
    query_init, output_init: initializers of the query and output projections; `kernel_init` by default.
    head_size: H; D / N by default.
    scale: factor of the scores; 1 / sqrt(H) by default.
    use_bias: true for projections with biases.
    """

    features: int
    num_heads: int
    dropout: float
    kernel_init: Initializer
    execution: Execution = Execution()
    head_size: int | None = None
    scale: float | None = None
    use_bias: bool = True
    query_init: Initializer | None = None
    output_init: Initializer | None = None

    def setup(self) -> None:
        self.size = self.features // self.num_heads if self.head_size is None else self.head_size
        heads, inputs, init = (self.num_heads, self.size), ("embed", "heads", "head"), self.kernel_init
        projection = functools.partial(layer_projection, self.execution, use_bias=self.use_bias)
        self.query = projection(heads, inputs, self.query_init or init, name="query")
        keys = (self.heads_of_keys, self.size)
        self.key = projection(keys, inputs, init, name="key")
        self.value = projection(keys, inputs, init, name="value")
        joined = ("heads", "head", "embed")
        self.output = projection((self.features,), joined, self.output_init or init, name="output")
        self.probability_dropout = Dropout(self.dropout)

    @property
    def heads_of_keys(self) -> int:
        """Number of key and value heads; a subclass may have fewer than N."""
        return self.num_heads

    def __call__(
        self,
        queries: jax.Array,
        source: jax.Array,
        mask_terms: MaskTerms | None = None,
        terms: tuple[BiasTerm, ...] = (),
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Project keys and values from `source` [B S ...] and attend to them.

        The queries are [B T D] and the result is [B T D]. The other arguments are those of `attend`.
        """
        query = self.scaled(self.query(queries))
        key_values = self.key_values(source)
        return self.output(
            self.context(query, key_values, mask_terms, terms=terms, deterministic=deterministic, name=self.name)
        )

    def key_values(self, source: jax.Array, value_source: jax.Array | None = None) -> KeyValues:
        """Project [B S ...] to the keys and values of `attend`.

        value_source: the input of the values, [B S ...]; `source` by default.
        """
        value_source = source if value_source is None else value_source
        return KeyValues(_by_heads(self.key(source)), _by_heads(self.value(value_source)))

    def attend(
        self,
        queries: jax.Array,
        key_values: KeyValues,
        mask_terms: MaskTerms | None = None,
        terms: tuple[BiasTerm, ...] = (),
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Attend to projected keys and values. The softmax is in float32.

        Args:
            queries: [B T D].
            key_values: from `key_values`, [B S N H] each.
            mask_terms: the keys that each query sees; None: all keys.
            terms: terms added to the scores, such as relative positions.
            deterministic: disables dropout.

        Returns:
            [B T D].
        """
        query = self.scaled(self.query(queries))
        return self.output(
            self.context(query, key_values, mask_terms, terms=terms, deterministic=deterministic, name=self.name)
        )

    def scaled(self, query: jax.Array) -> jax.Array:
        """Multiply projected queries, [B T N H], by `scale`."""
        scale = 1.0 / math.sqrt(self.size) if self.scale is None else self.scale
        return _by_heads(query) * jnp.asarray(scale, self.execution.dtype)

    def context(
        self,
        query: jax.Array,
        key_values: KeyValues,
        mask_terms: MaskTerms | None,
        *,
        terms: tuple[BiasTerm, ...],
        deterministic: bool,
        name: str | None = None,
    ) -> jax.Array:
        """Attend from scaled queries, without the output projection: [B T N H] -> [B T N H].

        name: name of the weights in `output_attentions` (`plmjax.layers.attention.recording`); None to record none.
        """
        keys, values, mask_terms = key_values.keys, key_values.values, mask_terms or MaskTerms()
        if name is not None:
            record(name, lambda: weights(query, keys, mask_terms, terms))
        backend, dropout_key = BACKENDS[self.execution.attention], self.probability_dropout.key(deterministic)
        return backend(
            query, keys, values, mask_terms=mask_terms, terms=terms, rate=self.dropout, dropout_key=dropout_key
        )


def _by_heads(x: jax.Array) -> jax.Array:
    return nn.with_logical_constraint(x, ("batch", "length", "heads", "head"))
