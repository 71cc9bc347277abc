"""LSTM layers: against torch's, against the formula written out, and how states pass from part to part."""

import operator
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.recurrent.lstm import BidirectionalLstm, Lstm, LstmState, recurrence
from tests.optional import torch

BATCH, LENGTH, INPUTS, HIDDEN = 4, 5, 3, 6
LENGTHS = [5, 2, 4, 1]
INIT = nn.initializers.normal(0.5)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, LENGTH, INPUTS)).astype(np.float32)
VISIBLE = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("projected", [None, 2])
def test_equals_torch_in_both_directions_on_padded_rows(projected: int | None) -> None:
    """Outputs, last states, and the gradients of inputs, first states and all parameters; torch packs the rows."""
    width = projected or HIDDEN
    layer = torch.nn.LSTM(INPUTS, HIDDEN, bidirectional=True, batch_first=True, proj_size=projected or 0)
    x, cells, outputs = (torch.tensor(a) for a in (X, drawn(2, BATCH, HIDDEN), drawn(2, BATCH, width)))
    weights = drawn(BATCH, LENGTH, 2 * width), drawn(2, BATCH, HIDDEN), drawn(2, BATCH, width)
    for tensor in (x, cells, outputs):
        tensor.requires_grad_()
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    packed, (last_outputs, last_cells) = layer(rows, (outputs, cells))
    y = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=LENGTH)[0]
    expected = y, last_cells, last_outputs
    sum((torch.tensor(w) * part).sum() for w, part in zip(weights, expected, strict=True)).backward()

    def read(read: Any) -> dict[str, Any]:
        """The parameters of both directions, [2 ...], from torch's tensors or from their gradients."""

        def both(name: str) -> torch.Tensor:
            return torch.stack([read(getattr(layer, name)), read(getattr(layer, f"{name}_reverse"))])

        def kernel(name: str) -> np.ndarray:
            return both(name).swapaxes(1, 2).reshape(2, -1, 4, HIDDEN).numpy()

        params = {"input": {"kernel": kernel("weight_ih_l0")}, "recurrent_kernel": kernel("weight_hh_l0")}
        return params if projected is None else params | {"projection_kernel": both("weight_hr_l0").mT.numpy()}

    params = read(torch.detach)
    biases = [layer.bias_ih_l0 + layer.bias_hh_l0, layer.bias_ih_l0_reverse + layer.bias_hh_l0_reverse]
    params["input"]["bias"] = torch.stack(biases).detach().reshape(2, 4, HIDDEN).numpy()

    def directions(params: Any, x: jax.Array, states: LstmState) -> tuple[jax.Array, jax.Array, jax.Array]:
        found = []
        for reverse in (False, True):
            module = Lstm(HIDDEN, INIT, projected=projected, reverse=reverse)
            own, state = jax.tree.map(operator.itemgetter(int(reverse)), (params, states))
            found.append(module.apply({"params": own}, x, state, visible=VISIBLE))
        (forward, after), (backward, before) = found
        states = jax.tree.map(lambda *leaves: jnp.stack(leaves), after, before)
        return jnp.concatenate([forward, backward], axis=-1), states.cell, states.output

    def loss(*inputs: Any) -> tuple[jax.Array, Any]:
        found = directions(*inputs)
        return sum(jnp.sum(w * part) for w, part in zip(weights, found, strict=True)), found

    states = LstmState(*(tensor.detach().numpy() for tensor in (cells, outputs)))
    gradients, found = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(params, X, states)
    chex.assert_trees_all_close(found, tuple(part.detach().numpy() for part in expected), rtol=1e-5, atol=1e-5)
    wanted = read(lambda tensor: tensor.grad)
    of_bias = torch.stack([layer.bias_ih_l0.grad, layer.bias_ih_l0_reverse.grad])
    wanted["input"]["bias"] = of_bias.reshape(2, 4, HIDDEN).numpy()
    wanted = wanted, x.grad.numpy(), LstmState(cells.grad.numpy(), outputs.grad.numpy())
    chex.assert_trees_all_close(gradients, wanted, rtol=1e-4, atol=1e-5)


def test_a_bidirectional_layer_with_two_biases_equals_torch_on_padded_rows() -> None:
    """Outputs, last states, and the gradients of inputs and all parameters."""
    layer, x = torch.nn.LSTM(INPUTS, HIDDEN, bidirectional=True, batch_first=True), torch.tensor(X, requires_grad=True)
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    packed, last = layer(rows)
    y = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=LENGTH)[0]
    weights = drawn(BATCH, LENGTH, 2 * HIDDEN), drawn(2, BATCH, HIDDEN), drawn(2, BATCH, HIDDEN)
    sum((torch.tensor(w) * part).sum() for w, part in zip(weights, (y, *last), strict=True)).backward()

    def read(read: Any) -> dict[str, Any]:
        def direction(suffix: str) -> dict[str, Any]:
            w, u, b, c = (
                read(getattr(layer, f"{name}_l0{suffix}")).numpy().T.reshape(-1, 4, HIDDEN)
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            return {"input": {"kernel": w, "bias": b[0]}, "recurrent_kernel": u, "recurrent_bias": c[0]}

        return {"forward": direction(""), "backward": direction("_reverse")}

    def loss(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        module = BidirectionalLstm(HIDDEN, INIT, recurrent_bias=True)
        found, states = module.apply({"params": params}, x, visible=VISIBLE)
        found = found, jnp.stack([state.output for state in states]), jnp.stack([state.cell for state in states])
        return sum(jnp.sum(w * part) for w, part in zip(weights, found, strict=True)), found

    gradients, found = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(read(torch.detach), X)
    expected = tuple(part.detach().numpy() for part in (y, *last))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
    wanted = read(lambda tensor: tensor.grad), x.grad.numpy()
    chex.assert_trees_all_close(gradients, wanted, rtol=1e-4, atol=1e-5)


def written_out(
    gates: jax.Array,
    kernel: jax.Array,
    projection: jax.Array,
    *,
    state: LstmState,
    starts: np.ndarray,
    visible: np.ndarray,
) -> tuple[jax.Array, LstmState]:
    """The recurrence in reverse, token by token, with all its settings, for JAX to differentiate."""
    cell, output, outputs = state.cell, state.output, [None] * LENGTH
    for t in reversed(range(LENGTH)):
        shown = visible[:, t, None]
        cell, output = (jnp.where(starts[:, t, None] & shown, 0, part) for part in (cell, output))
        i, f, g, o = jnp.moveaxis(gates[:, t] + jnp.tensordot(output, kernel, 1), 1, 0)
        new = jnp.clip(jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g), -0.3, 0.3)
        emitted = jnp.clip((jax.nn.sigmoid(o) * jnp.tanh(new)) @ projection, -0.2, 0.2)
        outputs[t] = jnp.where(shown, emitted, 0)
        cell, output = jnp.where(shown, new, cell), jnp.where(shown, emitted, output)
    return jnp.stack(outputs, axis=1), LstmState(cell, output)


def test_clips_starts_and_forget_bias_are_those_of_the_formula_and_so_are_their_gradients() -> None:
    random = np.random.default_rng(1)
    gates, kernel, projection = (random.normal(size=size) for size in ((4, 5, 4, 6), (2, 4, 6), (6, 2)))
    state = LstmState(0.3 * random.normal(size=(4, 6)), 0.3 * random.normal(size=(4, 2)))
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (gates, kernel, projection, state))
    starts = random.uniform(size=(4, 5)) < 0.3
    clips = {"cell_clip": 0.3, "projection_clip": 0.2, "forget_bias": 1.0}
    weights = random.normal(size=(4, 5, 2)), LstmState(random.normal(size=(4, 6)), random.normal(size=(4, 2)))

    def ours(
        gates: jax.Array, kernel: jax.Array, projection: jax.Array, state: LstmState
    ) -> tuple[jax.Array, LstmState]:
        masks = {"starts": jnp.asarray(starts), "visible": jnp.asarray(VISIBLE)}
        return recurrence(gates, kernel, state, **masks, projection_kernel=projection, **clips, reverse=True)

    def formula(
        gates: jax.Array, kernel: jax.Array, projection: jax.Array, state: LstmState
    ) -> tuple[jax.Array, LstmState]:
        return written_out(gates, kernel, projection, state=state, starts=starts, visible=VISIBLE)

    def results(run: Any) -> tuple:
        def loss(inputs: Any) -> tuple[jax.Array, Any]:
            found = run(*inputs)
            return jax.tree.reduce(jnp.add, jax.tree.map(lambda w, y: jnp.sum(w * y), weights, found)), found

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    gradients, found = results(ours)
    clipped = [np.mean(np.abs(part) == largest) for part, largest in ((found[1].cell, 0.3), (found[0], 0.2))]
    assert starts[VISIBLE].any() and starts[~VISIBLE].any() and all(0.05 < share < 0.95 for share in clipped)
    chex.assert_trees_all_close((gradients, found), results(formula), rtol=1e-5, atol=1e-6)
