"""Scaled dot-product attention with several heads (Vaswani et al., arXiv 1706.03762)."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.layers.dropout import Dropout
from plmjax.layers.product import float32_product
from plmjax.layers.projection import Projection

MASKED = -10000.0
"""What is added to a score that must not count, as in google-research/bert modeling.py; exp of it is 0 in float32."""


def padding_bias(attention_mask: jax.Array) -> jax.Array:
    """Hides keys whose mask is 0: [B S] -> float32 [B 1 1 S]."""
    return MASKED * (1.0 - attention_mask[:, None, None, :].astype(jnp.float32))


def segment_bias(segment_ids: jax.Array) -> jax.Array:
    """Lets two tokens attend to each other iff their segments are equal and above 0: [B T] -> float32 [B 1 T T]."""
    same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (segment_ids[:, None, :] > 0)
    return jnp.where(same, 0.0, MASKED)[:, None]


class MultiHeadAttention(nn.Module):
    """softmax(Q K^T / sqrt(H) + bias) V, projected back to D.

    num_heads: N; a head has H = D / N features.
    dropout: rate at which attention probabilities are dropped.
    kernel_init: initializer of the four projections.
    """

    num_heads: int
    dropout: float
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self, queries: jax.Array, keys: jax.Array, bias: jax.Array | None, *, deterministic: bool
    ) -> jax.Array:
        """[B T D], [B S D], float32 bias that broadcasts to [B N T S] -> [B T D]. The softmax is in float32."""
        features = queries.shape[-1]
        size = features // self.num_heads

        def heads(name: str, x: jax.Array) -> jax.Array:  # [B T D] -> [B T N H]
            axes = ("embed", "heads", "head")
            y = Projection((self.num_heads, size), axes, self.kernel_init, self.dtype, name=name)(x)
            return nn.with_logical_constraint(y, ("batch", "length", "heads", "head"))

        query, key, value = heads("query", queries), heads("key", keys), heads("value", keys)
        query = query * jnp.asarray(1.0 / math.sqrt(size), self.dtype)
        scores = float32_product(functools.partial(jnp.einsum, "BTNH,BSNH->BNTS"), query, key)
        if bias is not None:
            scores = scores + bias
        probabilities = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        probabilities = Dropout(self.dropout)(probabilities, deterministic)
        context = jnp.einsum("BNTS,BSNH->BTNH", probabilities, value)
        return Projection((features,), ("heads", "head", "embed"), self.kernel_init, self.dtype, name="output")(context)
