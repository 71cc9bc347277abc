"""The position-wise feed-forward network, the gated one, and their activations."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.declared_names import declare_name
from plmjax.contracts.execution import Execution
from plmjax.errors import UserError, quoted
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import layer_projection


def _exact_gelu(x: jax.Array) -> jax.Array:
    """Return x Phi(x) from erf, computed in float32, as PyTorch does.

    `jax.nn.gelu` calls erfc, which has more digits where the result is almost 0. A TPU takes longer for erfc than for
    the matrix product before it (docs/notes/tpu_step.md, "Activations").
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    half = 0.5 * wide
    return (half + half * jax.lax.erf(wide * math.sqrt(0.5))).astype(x.dtype)


def _on_matrix(activation: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return a function that on a CPU applies `activation` to a matrix [rows features], and elsewhere as it is.

    XLA for CPU then keeps the matrix for the gradient of the next kernel. Otherwise it would compute the activation
    again, column by column, while it transposes the matrix. That takes a fourteenth of the time of BERT-Base's step
    (`benchmarks/steps.py`). On a TPU the reshape costs time.
    """

    def in_rows(x: jax.Array) -> jax.Array:
        return activation(x.reshape(-1, *x.shape[-1:])).reshape(x.shape)

    return lambda x: jax.lax.platform_dependent(x, cpu=in_rows, default=activation)


_NAMES = {
    ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"): functools.partial(
        jax.nn.gelu, approximate=True
    ),
    ("gelu", "gelu_python"): _exact_gelu,
    ("relu",): jax.nn.relu,
    ("swish", "silu"): jax.nn.silu,
}


def _with_input_kept(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return jax.checkpoint(_on_matrix(function), prevent_cse=False)


ACTIVATIONS = {
    name: activation
    for names, function in _NAMES.items()
    for activation in [_with_input_kept(function)]
    for name in names
}
"""Dict from name to activation, with the names of transformers, which has several names for some functions.

gelu_new is the tanh form of GELU, gelu is the exact form, swish is x sigmoid(x). The backward pass keeps only the input
of an activation and computes the rest again, which takes less time than to read stored values.
"""


def declare_activation(name: str, function: Callable[[jax.Array], jax.Array]) -> None:
    """Add an activation that the configs of all models can name, with its name in transformers if it has one there.

    function: an elementwise function of an array of any shape and floating dtype.

    Raises:
        UserError: plmjax has an activation of this name.
    """
    declare_name(ACTIVATIONS, name, _with_input_kept(function), kind="an activation")


def check_activation(name: str) -> None:
    """Raise UserError for an unknown activation. No similar name is suggested: it could be another function."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"Expected an activation of {', '.join(ACTIVATIONS)}, which are computed here, found {quoted(name)}; take "
            f"one of these, or declare it (docs/extending.md)."
        )


INNER = ("batch", "length", "mlp")
"""Logical axes of the inner features, [B T F]."""


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2: [... D] -> [... F] -> [... D].

    output_init: initializer of W2; `kernel_init` by default.
    dropout: dropout rate of the F inner features.
    use_bias: true to add b1 and b2.
    """

    inner_size: int
    activation: str
    kernel_init: Initializer
    execution: Execution = Execution()
    output_init: Initializer | None = None
    dropout: float = 0.0
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        hidden = nn.with_logical_constraint(self.hidden(x), INNER)
        axes, init = ("mlp", "embed"), self.output_init or self.kernel_init
        outer = layer_projection(self.execution, x.shape[-1:], axes, init, use_bias=self.use_bias, name="output")
        return outer(self.drop(hidden, deterministic))

    def hidden(self, x: jax.Array) -> jax.Array:
        """Return activation(x W1 + b1), [... D] -> [... F]."""
        return ACTIVATIONS[self.activation](self.inner(x, "intermediate"))

    def inner(self, x: jax.Array, name: str) -> jax.Array:
        """Project [... D] to [... F] by the projection `name`."""
        axes, init = ("embed", "mlp"), self.kernel_init
        return layer_projection(self.execution, (self.inner_size,), axes, init, use_bias=self.use_bias, name=name)(x)

    def drop(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Apply dropout to the inner features, [... F]; a subclass may override this."""
        return Dropout(self.dropout, axes=INNER)(x, deterministic)


class GatedFeedForward(FeedForward):
    """(activation(x W1) * (x V)) W2, by default without biases (Shazeer, arXiv 2002.05202).

    GeGLU with the activation gelu, SwiGLU with silu.
    """

    use_bias: bool = False

    def hidden(self, x: jax.Array) -> jax.Array:
        """Return activation(x W1) * (x V), [... D] -> [... F]."""
        return super().hidden(x) * self.inner(x, "gate")
