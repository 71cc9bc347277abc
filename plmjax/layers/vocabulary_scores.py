"""The scores that a language model gives to every token of its vocabulary, computed only where they are asked for."""

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.layers.product import float32_product


@flax.struct.dataclass
class VocabularyScores:
    """hidden . table + bias, for every position.

    hidden: [B T D], of the dtype that products are computed in.
    table: float32 [V D], the output layer: often the word table itself.
    bias: float32 [V], or None.
    """

    hidden: jax.Array
    table: jax.Array
    bias: jax.Array | None = None

    def logits(self) -> jax.Array:
        """float32 [B T V]."""
        table = self.table.astype(self.hidden.dtype)
        scores = float32_product(functools.partial(jnp.einsum, "BTD,VD->BTV"), self.hidden, table)
        scores = scores if self.bias is None else scores + self.bias
        return nn.with_logical_constraint(scores, ("batch", "length", "vocab"))

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """int [B T] -> -log softmax(logits)[targets], float32 [B T], and whether no token scores higher, bool [B T]."""
        logits = self.logits()
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(logits, axis=-1) - chosen, chosen >= jnp.max(logits, axis=-1)
