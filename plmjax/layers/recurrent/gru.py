"""Gated recurrent units: one scan over time. The products of all inputs are computed at once before the scan.

    r, z = sigmoid(x_t W + b + h_{t-1} U);  n = tanh(x_t W + b + r (h_{t-1} U + c))
    h_t = (1 - z) n + z h_{t-1}                              (Cho et al. 2014, arXiv 1406.1078; torch.nn.GRU)

The gates are in the order of torch: reset, update, candidate (n). Products are in the model's dtype. The state, and the
values computed from it within a step, are float32.

Deviation: the reset gate multiplies the state's product, as in torch and cuDNN; in the paper it multiplies the state.
"""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.product import float32_product
from plmjax.layers.recurrent.scan_over_time import (
    BACK_TO_STATE,
    OF_GATES,
    TO_GATES,
    RecurrentLayer,
    batch_first,
    both_directions,
    replicate,
    restarts,
    shard_rows,
    states_before,
    time_first,
    where,
)

GATES = 3
"""Number of gates: reset, update, candidate."""


def recurrence(
    gates: jax.Array,
    recurrent_kernel: jax.Array,
    candidate_bias: jax.Array,
    state: jax.Array,
    *,
    starts: jax.Array | None = None,
    visible: jax.Array | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Compute the recurrent part of a layer, in one direction.

    The backward pass is custom: it computes the gradient of the kernel as one product after the scan. Only first-order
    reverse-mode differentiation is defined.

    Args:
        gates: x W + b of all tokens, [B T 3 H], in the dtype of the products.
        recurrent_kernel: U, [H 3 H].
        candidate_bias: c, [H].
        state: h before the first token that is read, [B H].
        starts: bool [B T], the first tokens of documents, as for an LSTM (layers/recurrent/lstm.py).
        visible: bool [B T], the padding mask, as for an LSTM.
        reverse: reads from the last token to the first; outputs stay at their tokens.

    Returns:
        outputs [B T H] in the dtype of `gates`, and the state after the last token that is read, in the dtype of
        `state`.
    """
    batch, length, _, hidden = gates.shape
    chex.assert_shape(gates, (batch, length, GATES, hidden))
    chex.assert_shape(recurrent_kernel, (hidden, GATES, hidden))
    chex.assert_shape(candidate_bias, (hidden,))
    chex.assert_shape(state, (batch, hidden))
    over_time = time_first(gates, starts, visible)
    kernel, bias = replicate(recurrent_kernel).astype(gates.dtype), candidate_bias.astype(jnp.float32)
    outputs, last = _scan(reverse, *over_time, kernel, bias, shard_rows(state).astype(jnp.float32).T)
    return batch_first(outputs), shard_rows(last.T.astype(state.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(reverse: bool, *inputs: Any) -> tuple[jax.Array, jax.Array]:
    """Compute `recurrence` with time as the first axis and rows as the last: [T ... B], and states [H B]."""
    return _scan_forward(reverse, *inputs)[0]


def _scan_forward(
    reverse: bool,
    gates: jax.Array,
    starts: jax.Array | None,
    visible: jax.Array | None,
    recurrent: jax.Array,
    bias: jax.Array,
    first: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    to_gates, dtype = jnp.moveaxis(recurrent, 0, -1), gates.dtype  # [3 H H]

    def step(before: jax.Array, inputs: Any) -> tuple[jax.Array, Any]:
        x, start, shown = inputs
        before, x = where(start, jnp.zeros_like(before), before), x.astype(jnp.float32)
        state_products = float32_product(TO_GATES, to_gates, before.astype(dtype))
        reset, update = jax.nn.sigmoid(x[0] + state_products[0]), jax.nn.sigmoid(x[1] + state_products[1])
        inner = state_products[2] + bias[:, None]
        candidate = jnp.tanh(x[2] + reset * inner)
        after = candidate + update * (before - candidate)
        after = after if shown is None else where(shown, after, before)
        return after, (after, jnp.stack([reset, update, candidate, inner]).astype(dtype))

    last, (states, activations) = jax.lax.scan(step, first, (gates, starts, visible), reverse=reverse)
    outputs = states if visible is None else jnp.where(visible[:, None], states, 0)
    return (outputs.astype(dtype), last), (starts, visible, recurrent, first, states, activations)


def _scan_backward(reverse: bool, kept: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple:
    starts, visible, recurrent, first, states, activations = kept
    outputs_gradient, last_gradient = cotangents
    dtype = activations.dtype
    before = states_before(states, first, starts, reverse)

    def step(after_gradient: jax.Array, inputs: Any) -> tuple[jax.Array, Any]:
        emitted_gradient, state, activated, start, shown = inputs
        reset, update, candidate, inner = activated.astype(jnp.float32)
        state_gradient = after_gradient + emitted_gradient.astype(jnp.float32)
        if shown is not None:
            state_gradient = where(shown, state_gradient, jnp.zeros_like(state_gradient))
        candidate_gradient = state_gradient * (1 - update) * (1 - jnp.square(candidate))
        reset_gradient = candidate_gradient * inner * reset * (1 - reset)
        update_gradient = state_gradient * (state - candidate) * update * (1 - update)
        inner_gradient = (candidate_gradient * reset).astype(dtype)
        gates_gradient = jnp.stack([reset_gradient, update_gradient, candidate_gradient]).astype(dtype)
        before_gradient = state_gradient * update + float32_product(
            BACK_TO_STATE, recurrent, gates_gradient.at[2].set(inner_gradient)
        )
        if shown is not None:
            before_gradient = where(shown, before_gradient, after_gradient)
        return where(start, jnp.zeros_like(before_gradient), before_gradient), (gates_gradient, inner_gradient)

    inputs = (outputs_gradient, before, activations, starts, visible)
    first_gradient, (gates_gradient, inner_gradient) = jax.lax.scan(step, last_gradient, inputs, reverse=not reverse)
    products_gradient = gates_gradient.at[:, 2].set(inner_gradient)
    recurrent_gradient = jnp.einsum("TPB,TGHB->PGH", before.astype(dtype), products_gradient)
    bias_gradient = jnp.sum(inner_gradient.astype(jnp.float32), axis=(0, 2))
    return gates_gradient, None, None, recurrent_gradient, bias_gradient, first_gradient


_scan.defvjp(_scan_forward, _scan_backward)


class Gru(RecurrentLayer):
    """A GRU layer in one direction, with the fields of `RecurrentLayer`.

    Further parameters: `recurrent_kernel` [H 3 H] and `candidate_bias` [H].
    """

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        state: jax.Array | None = None,
        *,
        starts: jax.Array | None = None,
        visible: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Map [B T D] to [B T H] and the state after the last token that is read, [B H].

        Args:
            state: h before the first token that is read, [B H]; zeros by default.
            starts: bool [B T], the first tokens of documents, as for an LSTM (layers/recurrent/lstm.py).
            visible: bool [B T], the padding mask, as for an LSTM.
        """
        if state is None:
            state = jnp.zeros((x.shape[0], self.features))
        x, state = recurrence(
            self.input_gates(x, GATES),
            self.kernel("recurrent_kernel", OF_GATES, self.features, GATES, self.features),
            self.bias("candidate_bias", ("mlp",), self.features),
            state,
            starts=restarts(starts, self.reverse),
            visible=visible,
            reverse=self.reverse,
        )
        return shard_hidden(x), state


class BidirectionalGru(nn.Module):
    """A GRU layer in both directions: the modules `forward` and `backward`.

    features: H, the size of the state in each direction.
    kernel_init, bias_init, dtype: as in `Gru`.
    """

    features: int
    kernel_init: Initializer
    bias_init: Initializer = nn.initializers.zeros
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array, *, starts: jax.Array | None = None, visible: jax.Array | None = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Map [B T D] to [B T 2 H], forward then backward, and the last state of each direction.

        starts, visible: as in `Gru`. Each direction resets its state at the token of a document that it reads first.
        """
        layer = functools.partial(Gru, self.features, self.kernel_init, self.bias_init, dtype=self.dtype)
        return both_directions(layer, x, starts, visible)
