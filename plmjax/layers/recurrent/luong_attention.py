"""Global attention of a recurrent decoder (Luong, Pham and Manning, EMNLP 2015, arXiv 1508.04025, section 3.1).

weights = softmax over j of source_j W query    (the "general" score; the "dot" score has no W)
output = tanh(V [sum over j of weights_j source_j ; query])
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.layers.attention.recording import CROSS, record
from plmjax.layers.dropout import Dropout
from plmjax.layers.product import float32_product
from plmjax.layers.projection import Projection

_SCORES = functools.partial(jnp.einsum, "BKD,BSD->BKS")


class LuongAttention(nn.Module):
    """Attention of the K queries of each row to the S positions of its source.

    features: size of the output.
    kernel_init: initializer of W and V, the parameters `query/kernel` and `output/kernel`.
    dtype: dtype of the products, the weights and the output; scores are float32.
    projects_query: true to use W; without W, queries have the size of the source.
    attention_dropout: dropout rate of the weights.
    output_axes: logical axes of V.
    """

    features: int
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32
    projects_query: bool = True
    attention_dropout: float = 0.0
    output_axes: tuple[str, str] = ("mlp", "embed")

    @nn.compact
    def __call__(
        self, query: jax.Array, source: jax.Array, visible: jax.Array, deterministic: bool = True
    ) -> jax.Array:
        """Attend, with the arguments and the result of `attend`."""
        return self.attend(query, source, visible, deterministic)

    def attend(self, query: jax.Array, source: jax.Array, visible: jax.Array, deterministic: bool) -> jax.Array:
        """Map queries [B K Q] and the source [B S D] to [B K features].

        A subclass that extends `__call__` calls this method.

        visible: bool [B K S] or [B 1 S], the positions of the source that a query attends to.
        """

        def project(name: str, features: int, axes: tuple[str, str], x: jax.Array) -> jax.Array:
            return Projection((features,), axes, self.kernel_init, self.dtype, use_bias=False, name=name)(x)

        projected = project("query", source.shape[-1], ("mlp", "embed"), query) if self.projects_query else query
        scores = jnp.where(visible, float32_product(_SCORES, projected, source), EXCLUDED)
        probabilities = jax.nn.softmax(scores, axis=-1)
        record(CROSS, lambda: jnp.where(visible, probabilities, 0)[:, None])
        weights = Dropout(self.attention_dropout)(probabilities.astype(self.dtype), deterministic)
        joined = jnp.concatenate([jnp.einsum("BKS,BSD->BKD", weights, source), query], axis=-1)
        # Keep all features on every device. Otherwise XLA (of jax 0.10) shards them across the boundary between the
        # concatenated parts, and on a mesh with three axes the gradients of the source are wrong.
        joined = nn.with_logical_constraint(joined, ("batch", "length", None))
        return jnp.tanh(project("output", self.features, self.output_axes, joined))
