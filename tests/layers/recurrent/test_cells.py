"""LSTM and GRU layers: against the formula written out and torch's, and how states pass from part to part.

tests/models/test_awd_lstm.py has torch's LSTM. And what global attention sees and drops; the rows of CoVe and of CVT
have its formula.
"""

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.recurrent.gru import Gru
from plmjax.layers.recurrent.lstm import Lstm, LstmState, recurrence
from plmjax.layers.recurrent.luong_attention import LuongAttention
from tests.optional import torch
from tests.systems.modules import drawn

BATCH, LENGTH, HIDDEN = 4, 5, 6
X = np.random.default_rng(0).normal(size=(BATCH, LENGTH, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(BATCH, LENGTH, HIDDEN)).astype(np.float32)
INIT = nn.initializers.normal(0.5)
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("kind", [Gru, Lstm])
def test_two_halves_with_the_state_between_them_are_the_whole(kind: type[nn.Module]) -> None:
    """And states stay float32 where products are bfloat16."""
    layer = kind(HIDDEN, INIT)
    params = drawn(jax.eval_shape(layer.init, jax.random.key(0), X), deviation=0.5)

    @jax.jit
    def read(params: Any) -> Any:
        first, state = layer.apply(params, X[:, :2])
        second, state = layer.apply(params, X[:, 2:], state)
        halves = jnp.concatenate([first, second], axis=1), state
        return layer.apply(params, X), halves, kind(HIDDEN, INIT, dtype=jnp.bfloat16).apply(params, X)

    whole, halves, (narrow, state) = read(params)
    chex.assert_trees_all_close(halves, whole, atol=1e-6)
    assert narrow.dtype == jnp.bfloat16 and {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(narrow.astype(np.float32), whole[0], atol=0.03)


@pytest.mark.parametrize(("kind", "reverse"), [(Gru, True), (Gru, False), (Lstm, True)])
def test_no_state_and_no_gradient_passes_from_document_to_document(kind: type[nn.Module], reverse: bool) -> None:
    layer, starts = kind(HIDDEN, INIT, reverse=reverse), np.zeros((BATCH, LENGTH), bool)
    starts[:, [0, 3]] = True
    params = drawn(jax.eval_shape(layer.init, jax.random.key(0), X), deviation=0.5)

    def together(params: Any, x: jax.Array) -> Any:
        y, last = layer.apply(params, x, starts=starts)
        return jnp.sum(WEIGHTS * y), (y, last)

    def apart(params: Any, x: jax.Array) -> Any:
        (a, begun), (b, last) = (layer.apply(params, part) for part in (x[:, :3], x[:, 3:]))
        y = jnp.concatenate([a, b], axis=1)
        return jnp.sum(WEIGHTS * y), (y, begun if reverse else last)

    found, expected = (jax.jit(jax.grad(it, argnums=(0, 1), has_aux=True))(params, X) for it in (together, apart))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


QUERY = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
SEEN = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], bool)[:, None]


def test_a_query_that_sees_nothing_has_no_nan():
    source = RANDOM.normal(size=(2, 5, 4)).astype(np.float32)
    module = LuongAttention(7, nn.initializers.normal(0.5))
    found, _ = module.init_with_output(jax.random.key(0), QUERY, source, np.zeros((2, 3, 5), bool))
    assert np.all(np.isfinite(found))


def test_the_weights_are_dropped_and_nothing_else() -> None:
    """Without its weights an attention is tanh(V [0; query])."""
    source = RANDOM.normal(size=(2, 5, 4)).astype(np.float32)
    module = LuongAttention(7, nn.initializers.normal(0.5), projects_query=False, attention_dropout=1 - 1e-7)
    params = module.init(jax.random.key(0), QUERY, source, SEEN)
    found = module.apply(params, QUERY, source, SEEN, False, rngs={"dropout": jax.random.key(0)})
    kernel = nn.meta.unbox(params)["params"]["output"]["kernel"]
    np.testing.assert_allclose(found, np.tanh(QUERY @ kernel[4:]), atol=1e-6)
    assert np.abs(module.apply(params, QUERY, source, SEEN) - found).max() > 0.1


INPUTS = 3
LENGTHS = [5, 2, 4, 1]
VISIBLE = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def written_out(gates, kernel, projection, *, state: LstmState, starts, visible) -> tuple[jax.Array, LstmState]:
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

    def ours(gates: Any, kernel: Any, projection: Any, state: LstmState) -> tuple[jax.Array, LstmState]:
        masks = {"starts": jnp.asarray(starts), "visible": jnp.asarray(VISIBLE)}
        return recurrence(gates, kernel, state, **masks, projection_kernel=projection, **clips, reverse=True)

    def formula(gates: Any, kernel: Any, projection: Any, state: LstmState) -> tuple[jax.Array, LstmState]:
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


def test_a_gru_equals_torch_in_both_directions_on_padded_rows() -> None:
    """Outputs, last states, and the gradients of inputs, first states and all parameters."""
    layer = torch.nn.GRU(INPUTS, HIDDEN, bidirectional=True, batch_first=True)
    for suffix in ("", "_reverse"):  # a gate that is no candidate has one bias here
        getattr(layer, f"bias_hh_l0{suffix}").data[: 2 * HIDDEN] = 0
    x, first = torch.tensor(X, requires_grad=True), torch.tensor(normal(2, BATCH, HIDDEN), requires_grad=True)
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    packed, last = layer(rows, first)
    y = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=LENGTH)[0]
    weights = normal(BATCH, LENGTH, 2 * HIDDEN), normal(2, BATCH, HIDDEN)
    ((torch.tensor(weights[0]) * y).sum() + (torch.tensor(weights[1]) * last).sum()).backward()

    def read(of: Any) -> dict[str, Any]:
        def direction(suffix: str) -> dict[str, Any]:
            w, u, b, c = (
                of(getattr(layer, f"{name}_l0{suffix}")).numpy().T.reshape(-1, 3, HIDDEN)
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            return {"input": {"kernel": w, "bias": b[0]}, "recurrent_kernel": u, "candidate_bias": c[0, 2]}

        return {"forward": direction(""), "backward": direction("_reverse")}

    def loss(params: Any, x: jax.Array, first: jax.Array) -> tuple[jax.Array, Any]:
        parts = [
            Gru(HIDDEN, INIT, reverse=reverse).apply({"params": params[name]}, x, first[int(reverse)], visible=VISIBLE)
            for name, reverse in (("forward", False), ("backward", True))
        ]
        outputs, states = zip(*parts, strict=True)
        found = jnp.concatenate(outputs, axis=-1), jnp.stack(states)
        return sum(jnp.sum(w * part) for w, part in zip(weights, found, strict=True)), found

    inputs = read(torch.detach), X, first.detach().numpy()
    gradients, found = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
    chex.assert_trees_all_close(found, (y.detach().numpy(), last.detach().numpy()), rtol=1e-5, atol=1e-5)
    wanted = read(lambda tensor: tensor.grad), x.grad.numpy(), first.grad.numpy()
    chex.assert_trees_all_close(gradients, wanted, rtol=1e-4, atol=1e-5)
