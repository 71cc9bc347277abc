"""The position-wise feed-forward network and its activations."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError, quoted
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import layer_projection


def _exact_gelu(x: jax.Array) -> jax.Array:
    """Return x Phi(x) from erf, computed in float32, as PyTorch does.

    `jax.nn.gelu` calls erfc, which has more digits where the result is almost 0. A TPU takes longer for erfc than for
    the matrix product before it (docs/tpu.md, "Activations").
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    half = 0.5 * wide
    return (half + half * jax.lax.erf(wide * math.sqrt(0.5))).astype(x.dtype)


def _on_matrix(activation: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return the same function, which on a CPU is applied to a matrix [rows features].

    XLA for CPU then keeps the matrix for the gradient of the next kernel. Otherwise it would compute the activation
    again while it transposes it, column by column, for a fourteenth of the time of BERT-Base's step
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
ACTIVATIONS = {
    name: activation
    for names, function in _NAMES.items()
    for activation in [jax.checkpoint(_on_matrix(function), prevent_cse=False)]
    for name in names
}
"""Dict from name to activation, with the names of transformers, which has several for one function: gelu_new is the
tanh form of GELU, gelu is the exact form, swish is x sigmoid(x).

The backward pass keeps only their input and computes the rest again. This takes less time than to read it.
"""


def check_activation(name: str) -> None:
    """Raise UserError for an unknown activation. No similar name is suggested: it could be another function."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"Expected an activation of {', '.join(ACTIVATIONS)}, which are computed here, found {quoted(name)}; take "
            f"one of these."
        )


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2: [... D] -> [... F] -> [... D].

    output_init: initializer of W2; `kernel_init` by default.
    dropout: dropout rate of the F features inside.
    """

    inner_size: int
    activation: str
    kernel_init: Initializer
    execution: Execution = Execution()
    output_init: Initializer | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        projection = functools.partial(layer_projection, self.execution)
        inner = projection((self.inner_size,), ("embed", "mlp"), self.kernel_init, name="intermediate")
        outer = projection(x.shape[-1:], ("mlp", "embed"), self.output_init or self.kernel_init, name="output")
        x = nn.with_logical_constraint(ACTIVATIONS[self.activation](inner(x)), ("batch", "length", "mlp"))
        return outer(Dropout(self.dropout, axes=("batch", "length", "mlp"))(x, deterministic))
