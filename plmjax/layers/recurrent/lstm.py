"""Long short-term memory: one scan over time. The products of all inputs are computed at once before the scan.

    i, f, o = sigmoid(x_t W + h_{t-1} U + b);  g = tanh(x_t W + h_{t-1} U + b)
    c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)                                  (Hochreiter and Schmidhuber 1997)
    h_t = (o tanh(c_t)) P  with a projection                                   (Sak et al. 2014, arXiv 1402.1128)

The gates are in the order of torch: input, forget, candidate (g), output. Products are in the model's dtype. Cells, and
the values computed from them within a step, are float32.
"""

import functools
from typing import Any, NamedTuple, Self

import chex
import flax.linen as nn
import flax.struct
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

GATES = 4
"""Number of gates: input, forget, candidate, output."""
FORGET = 1
"""Index of the forget gate."""


@flax.struct.dataclass
class LstmState:
    """The state between two tokens: the cell c, float32 [B H], and the output h, [B P] (P is H without projection)."""

    cell: jax.Array
    output: jax.Array

    @classmethod
    def zeros(cls, batch: int, hidden: int, projected: int | None = None) -> Self:
        """Return the state before a text, float32 for every dtype of the model."""
        return cls(jnp.zeros((batch, hidden)), jnp.zeros((batch, hidden if projected is None else projected)))


class _Settings(NamedTuple):
    """The static arguments of `recurrence`."""

    cell_clip: float | None
    projection_clip: float | None
    forget_bias: float
    reverse: bool


def recurrence(
    gates: jax.Array,
    recurrent_kernel: jax.Array,
    state: LstmState,
    *,
    starts: jax.Array | None = None,
    visible: jax.Array | None = None,
    projection_kernel: jax.Array | None = None,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    forget_bias: float = 0.0,
    reverse: bool = False,
) -> tuple[jax.Array, LstmState]:
    """Compute the recurrent part of a layer, in one direction.

    The backward pass is custom: the gradient of each kernel is one product after the scan. JAX itself would add a
    product of the kernel's size at every token. Only first-order reverse-mode differentiation is defined.

    Args:
        gates: x W + b of all tokens, [B T 4 H], in the dtype of the products.
        recurrent_kernel: U, [P 4 H].
        state: the state before the first token that is read.
        starts: bool [B T], true at the first token of a document: the state is reset to zero before the token is read.
        visible: bool [B T], the padding mask, false at padding. Padding leaves the state unchanged, for any value of
            `starts`, and its output is 0.
        projection_kernel: [H P]; None: P is H, and outputs are not projected.
        cell_clip: largest absolute value in the cell; None: no limit.
        projection_clip: largest absolute value in the projected output; None: no limit.
        forget_bias: number added to the forget gate before its sigmoid, besides b; 1 in TensorFlow's cells.
        reverse: reads from the last token to the first; outputs stay at their tokens.

    Returns:
        outputs [B T P] in the dtype of `gates`, and the state after the last token that is read, in the dtype of
        `state`.
    """
    batch, length, _, hidden = gates.shape
    chex.assert_shape(gates, (batch, length, GATES, hidden))
    chex.assert_shape(recurrent_kernel, (None, GATES, hidden))
    chex.assert_shape(state.cell, (batch, hidden))
    chex.assert_shape(state.output, (batch, recurrent_kernel.shape[0]))
    recurrent_kernel, projection_kernel = jax.tree.map(replicate, (recurrent_kernel, projection_kernel))
    state = jax.tree.map(shard_rows, state)
    dtype = gates.dtype
    kernels = jax.tree.map(lambda kernel: kernel.astype(dtype), (recurrent_kernel, projection_kernel))
    first = LstmState(state.cell.astype(jnp.float32).T, state.output.astype(dtype).T)
    settings = _Settings(cell_clip, projection_clip, forget_bias, reverse)
    outputs, last = _scan(settings, *time_first(gates, starts, visible), kernels, first)
    return batch_first(outputs), jax.tree.map(lambda new, old: shard_rows(new.T.astype(old.dtype)), last, state)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(settings: _Settings, *inputs: Any) -> tuple[jax.Array, LstmState]:
    """Compute `recurrence` with time as the first axis and rows as the last: [T ... B], and states [... B]."""
    return _scan_forward(settings, *inputs)[0]


def _scan_forward(
    settings: _Settings,
    gates: jax.Array,
    starts: jax.Array | None,
    visible: jax.Array | None,
    kernels: tuple[jax.Array, jax.Array | None],
    first: LstmState,
) -> tuple[tuple[jax.Array, LstmState], tuple]:
    recurrent, projection = kernels
    to_gates = jnp.moveaxis(recurrent, 0, -1)  # [4 H P]
    to_output = None if projection is None else projection.T

    def step(before: LstmState, inputs: Any) -> tuple[LstmState, Any]:
        x, start, shown = inputs
        before = where(start, LstmState(jnp.zeros_like(before.cell), jnp.zeros_like(before.output)), before)
        summed = x.astype(jnp.float32) + float32_product(TO_GATES, to_gates, before.output)
        admit, emit = jax.nn.sigmoid(summed[0]), jax.nn.sigmoid(summed[3])
        forget, candidate = jax.nn.sigmoid(summed[1] + settings.forget_bias), jnp.tanh(summed[2])
        cell = _clip(forget * before.cell + admit * candidate, settings.cell_clip)
        output, within = (emit * jnp.tanh(cell)).astype(x.dtype), None
        if projection is not None:
            projected = to_output @ output
            output, within = _clip(projected, settings.projection_clip), _within(projected, settings.projection_clip)
        after = LstmState(cell, output) if shown is None else where(shown, LstmState(cell, output), before)
        activations = jnp.stack([admit, forget, candidate, emit]).astype(x.dtype)
        return after, (after, activations, within)

    last, kept = jax.lax.scan(step, first, (gates, starts, visible), reverse=settings.reverse)
    states = kept[0]
    outputs = states.output if visible is None else jnp.where(visible[:, None], states.output, 0)
    return (outputs, last), (starts, visible, kernels, first, *kept)


def _scan_backward(settings: _Settings, kept: tuple, cotangents: tuple[jax.Array, LstmState]) -> tuple:
    starts, visible, (recurrent, projection), first, states, activations, within = kept
    outputs_gradient, last_gradient = cotangents
    dtype = activations.dtype
    before = states_before(states, first, starts, settings.reverse)

    def step(after_gradient: LstmState, inputs: Any) -> tuple[LstmState, Any]:
        emitted_gradient, cell_after, cell_before, activated, within, start, shown = inputs
        admit, forget, candidate, emit = activated.astype(jnp.float32)
        state_gradient = LstmState(after_gradient.cell, after_gradient.output + emitted_gradient.astype(jnp.float32))
        if shown is not None:
            state_gradient = where(shown, state_gradient, jax.tree.map(jnp.zeros_like, state_gradient))
        projected_gradient = state_gradient.output
        if within is not None:
            projected_gradient = jnp.where(within, projected_gradient, 0)
        hidden_gradient = projected_gradient
        if projection is not None:
            projected_gradient = projected_gradient.astype(dtype)
            hidden_gradient = float32_product(jnp.matmul, projection, projected_gradient)
        squashed = jnp.tanh(cell_after)
        cell_gradient = state_gradient.cell + hidden_gradient * emit * (1 - jnp.square(squashed))
        if (limit := settings.cell_clip) is not None:
            # The sum before the clip tells a cell at the limit from one beyond it.
            at_most = _within(forget * cell_before + admit * candidate, limit) | (jnp.abs(cell_after) < limit)
            cell_gradient = jnp.where(at_most, cell_gradient, 0)
        summed_gradient = [
            cell_gradient * candidate * admit * (1 - admit),
            cell_gradient * cell_before * forget * (1 - forget),
            cell_gradient * admit * (1 - jnp.square(candidate)),
            hidden_gradient * squashed * emit * (1 - emit),
        ]
        gates_gradient = jnp.stack(summed_gradient).astype(dtype)
        before_gradient = LstmState(cell_gradient * forget, float32_product(BACK_TO_STATE, recurrent, gates_gradient))
        if shown is not None:
            before_gradient = where(shown, before_gradient, after_gradient)
        before_gradient = where(start, jax.tree.map(jnp.zeros_like, before_gradient), before_gradient)
        return before_gradient, (gates_gradient, None if projection is None else projected_gradient)

    inputs = (outputs_gradient, states.cell, before.cell, activations, within, starts, visible)
    last_gradient = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), last_gradient)
    first_gradient, (gates_gradient, projected_gradient) = jax.lax.scan(
        step, last_gradient, inputs, reverse=not settings.reverse
    )
    recurrent_gradient = jnp.einsum("TPB,TGHB->PGH", before.output, gates_gradient)
    projection_gradient = None
    if projection is not None:
        hidden = (activations[:, 3].astype(jnp.float32) * jnp.tanh(states.cell)).astype(dtype)
        projection_gradient = jnp.einsum("THB,TPB->HP", hidden, projected_gradient)
    first_gradient = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), first_gradient, first)
    return gates_gradient, None, None, (recurrent_gradient, projection_gradient), first_gradient


_scan.defvjp(_scan_forward, _scan_backward)


def _clip(x: jax.Array, largest: float | None) -> jax.Array:
    return x if largest is None else jnp.clip(x, -largest, largest)


def _within(x: jax.Array, largest: float | None) -> jax.Array | None:
    """Return true where `_clip` passes the gradient: within and at the limits (tf.clip_by_value, torch.clamp)."""
    return None if largest is None else jnp.abs(x) <= largest


class Lstm(RecurrentLayer):
    """An LSTM layer in one direction, with the fields of `RecurrentLayer`.

    Further parameters: `recurrent_kernel` [P 4 H] and, if requested, `recurrent_bias` [4 H] and `projection_kernel`
    [H P].

    Attributes:
        recurrent_bias: true for a second bias, added to the recurrent product, as in torch; only the sum of both biases
            matters.
        projected: P, the size of the output; None: the output is not projected.
        cell_clip: as in `recurrence`.
        projection_clip: as in `recurrence`.
        forget_bias: as in `recurrence`.
    """

    recurrent_bias: bool = False
    projected: int | None = None
    cell_clip: float | None = None
    projection_clip: float | None = None
    forget_bias: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        state: LstmState | None = None,
        *,
        starts: jax.Array | None = None,
        visible: jax.Array | None = None,
    ) -> tuple[jax.Array, LstmState]:
        """Map [B T D] to [B T P] and the state after the last token that is read.

        Args:
            state: the state before the first token that is read; zeros by default.
            starts: bool [B T], the first token of every document. No state passes from one document to another: a layer
                that reads in reverse resets its state at the last token of each document.
            visible: as in `recurrence`.
        """
        outputs = self.features if self.projected is None else self.projected
        if state is None:
            state = LstmState.zeros(x.shape[0], self.features, self.projected)
        sizes = GATES, self.features
        gates = self.input_gates(x, GATES)
        if self.recurrent_bias:
            gates = gates + self.bias("recurrent_bias", OF_GATES[1:], *sizes).astype(self.dtype)
        recurrent, projection = self.kernel("recurrent_kernel", OF_GATES, outputs, *sizes), None
        if self.projected is not None:
            projection = self.kernel("projection_kernel", ("mlp", "embed"), self.features, outputs)
        x, state = recurrence(
            gates,
            recurrent,
            state,
            starts=restarts(starts, self.reverse),
            visible=visible,
            projection_kernel=projection,
            cell_clip=self.cell_clip,
            projection_clip=self.projection_clip,
            forget_bias=self.forget_bias,
            reverse=self.reverse,
        )
        return shard_hidden(x), state


class BidirectionalLstm(nn.Module):
    """An LSTM layer in both directions: the modules `forward` and `backward`.

    features: H, the size of the cell in each direction.
    kernel_init, bias_init, recurrent_bias, projected, forget_bias, dtype: as in `Lstm`.
    """

    features: int
    kernel_init: Initializer
    bias_init: Initializer = nn.initializers.zeros
    recurrent_bias: bool = False
    projected: int | None = None
    forget_bias: float = 0.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array, *, starts: jax.Array | None = None, visible: jax.Array | None = None
    ) -> tuple[jax.Array, tuple[LstmState, LstmState]]:
        """Map [B T D] to [B T 2 P], forward then backward, and the last state of each direction.

        starts, visible: as in `Lstm`. The forward direction resets its state at the first token of each document, the
            backward direction at the last.
        """
        layer = functools.partial(
            Lstm,
            self.features,
            self.kernel_init,
            self.bias_init,
            dtype=self.dtype,
            recurrent_bias=self.recurrent_bias,
            projected=self.projected,
            forget_bias=self.forget_bias,
        )
        return both_directions(layer, x, starts, visible)
