"""Lightweight and dynamic convolutions over the tokens of a row (Wu et al. 2019, arXiv 1901.10430; fairseq).

Each of H heads has a kernel of K weights, a softmax of K logits, shared by all C / H features of the head:

    y[t, c] = sum over k of weights[t, head of c, k] x[t + k - before, c]

A lightweight convolution learns the logits, so that the weights are the same at every token. A dynamic one computes
them from the token. `before` is (K - 1) / 2 where a token sees both sides, and K - 1 where it sees no later token.
Beyond the ends of a row, and at padding, x is 0; the weights of these positions are not redistributed.

The cache of a model that generates text keeps the last K - 1 inputs of a convolution.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import Projection

ROW = ("batch", "length", "mlp")


def shared_scores(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Draw the logits [H K] from Glorot's uniform distribution for a kernel with one input feature and H outputs."""
    heads, size = shape
    bound = math.sqrt(6 / (size + heads * size))
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def convolve(
    weights: jax.Array, window: jax.Array, segments: jax.Array | None = None, before: int | None = None
) -> jax.Array:
    """Return the weighted sum of the K inputs around each of T tokens, [B T C].

    Args:
        weights: [B T H K], or [H K] for all tokens.
        window: [B K-1+T C], the inputs of the T tokens with those before and after them.
        segments: int [B T], the packed sequence of each token: a token sees inputs of its own sequence only. Inputs of
            the window outside the T tokens then belong to no sequence.
        before: number of inputs of the window before the first token; needed with `segments`.
    """
    heads, size = weights.shape[-2:]
    batch, length, features = window.shape[0], window.shape[1] - size + 1, window.shape[2]
    if segments is not None:
        around = jnp.pad(segments, ((0, 0), (before, size - 1 - before)), constant_values=-1)

    total = jnp.zeros((batch, length, heads, features // heads), window.dtype)
    for k in range(size):
        weight = weights[..., k]
        if segments is not None:
            weight = jnp.where((around[:, k : k + length] == segments)[..., None], weight, 0)
        total += weight[..., None] * window[:, k : k + length].reshape(total.shape)
    return total.reshape(batch, length, features)


class LightweightConvolution(nn.Module):
    """Projection, a convolution whose weights are the same at every token, and a projection: [B T D] -> [B T D].

    `inputs` computes the input of the convolution, separately, because a decoder caches it.

    features: D.
    num_heads: H.
    kernel_size: K.
    dropout: dropout rate of the weights.
    kernel_init: initializer of the projections.
    """

    features: int
    num_heads: int
    kernel_size: int
    dropout: float
    kernel_init: Initializer
    execution: Execution = Execution()

    def setup(self) -> None:
        self.input = self._projection(self.input_features, ("embed", "mlp"))
        self.output = self._projection(self.features, ("mlp", "embed"))
        self.weight_dropout = Dropout(self.dropout)
        self.create_scores()

    @property
    def input_features(self) -> int:
        """Number of features after the first projection."""
        return self.features

    def create_scores(self) -> None:
        """Create the kernel logits of each head."""
        init = nn.with_logical_partitioning(shared_scores, ("heads", None))
        self.scores = self.param("scores", init, (self.num_heads, self.kernel_size))

    def inputs(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Compute the inputs of the convolution, 0 at padding: [B T D], mask [B T] -> [B T D]."""
        x = nn.with_logical_constraint(self.activate(self.input(x)), ROW)
        return x if mask is None else x * mask[..., None].astype(x.dtype)

    def activate(self, x: jax.Array) -> jax.Array:
        """Return the features after the first projection unchanged; a subclass may add an activation."""
        return x

    def kernel_logits(self, inputs: jax.Array) -> jax.Array:
        """Return the kernel logits, before the softmax: float32 [H K]."""
        return self.scores

    def __call__(
        self,
        inputs: jax.Array,
        window: jax.Array,
        segments: jax.Array | None = None,
        before: int | None = None,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Convolve and project: the inputs of T tokens, [B T D], and their window, as in `convolve`, to [B T D]."""
        weights = jax.nn.softmax(self.kernel_logits(inputs)).astype(self.execution.dtype)
        weights = self.weight_dropout(weights, deterministic)
        return self.output(nn.with_logical_constraint(convolve(weights, window, segments, before), ROW))

    def _projection(self, features: int, axes: tuple[str, str]) -> Projection:
        return Projection((features,), axes, self.kernel_init, self.execution.dtype)


class DynamicConvolution(LightweightConvolution):
    """A convolution whose weights are computed from each token, with a gated linear unit after the first projection."""

    @property
    def input_features(self) -> int:
        """Number of features after the first projection: values and gates."""
        return 2 * self.features

    def create_scores(self) -> None:
        """Create the projection of a token to the kernel logits of each head."""
        heads, axes = (self.num_heads, self.kernel_size), ("mlp", "heads", None)
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2))
        self.scores = Projection(heads, axes, init, self.execution.dtype, logits=True, use_bias=False)

    def activate(self, x: jax.Array) -> jax.Array:
        """Multiply the first half of the features by the sigmoid of the second half."""
        value, gate = jnp.split(x, 2, axis=-1)
        return value * jax.nn.sigmoid(gate)

    def kernel_logits(self, inputs: jax.Array) -> jax.Array:
        """Compute the kernel logits of each token: [B T D] -> float32 [B T H K]."""
        return self.scores(inputs)


CONVOLUTIONS = {"dynamic": DynamicConvolution, "lightweight": LightweightConvolution}
"""Dict from name to convolution."""
