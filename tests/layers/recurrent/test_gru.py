"""GRU layers against torch's, and how states pass from part to part."""

from __future__ import annotations

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.layers.recurrent.gru import BidirectionalGru, Gru, recurrence
from plmjax.layers.recurrent.scan_over_time import ends
from plmjax.parallel import sharding
from tests.optional import torch

BATCH, LENGTH, INPUTS, HIDDEN = 4, 5, 3, 6
LENGTHS = [5, 2, 4, 1]
INIT = nn.initializers.normal(0.5)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, LENGTH, INPUTS)).astype(np.float32)
VISIBLE = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def read(layer: torch.nn.GRU, of: Any) -> dict[str, Any]:
    """Both directions' parameters from torch's tensors, or from their gradients."""

    def direction(suffix: str) -> dict[str, Any]:
        w, u, b, c = (
            of(getattr(layer, f"{name}_l0{suffix}")).numpy().T.reshape(-1, 3, HIDDEN)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        return {"input": {"kernel": w, "bias": b[0]}, "recurrent_kernel": u, "candidate_bias": c[0, 2]}

    return {"forward": direction(""), "backward": direction("_reverse")}


def test_equals_torch_in_both_directions_on_padded_rows() -> None:
    """Outputs, last states, and the gradients of inputs, first states and all parameters; torch packs the rows."""
    layer = torch.nn.GRU(INPUTS, HIDDEN, bidirectional=True, batch_first=True)
    for suffix in ("", "_reverse"):  # a gate that is no candidate has one bias here
        getattr(layer, f"bias_hh_l0{suffix}").data[: 2 * HIDDEN] = 0
    x, first = torch.tensor(X, requires_grad=True), torch.tensor(drawn(2, BATCH, HIDDEN), requires_grad=True)
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    packed, last = layer(rows, first)
    y = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=LENGTH)[0]
    weights = drawn(BATCH, LENGTH, 2 * HIDDEN), drawn(2, BATCH, HIDDEN)
    ((torch.tensor(weights[0]) * y).sum() + (torch.tensor(weights[1]) * last).sum()).backward()

    def loss(params: Any, x: jax.Array, first: jax.Array) -> tuple[jax.Array, Any]:
        parts = [
            Gru(HIDDEN, INIT, reverse=reverse).apply({"params": params[name]}, x, first[int(reverse)], visible=VISIBLE)
            for name, reverse in (("forward", False), ("backward", True))
        ]
        outputs, states = zip(*parts, strict=True)
        found = jnp.concatenate(outputs, axis=-1), jnp.stack(states)
        return sum(jnp.sum(w * part) for w, part in zip(weights, found, strict=True)), found

    inputs = read(layer, torch.detach), X, first.detach().numpy()
    gradients, found = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
    chex.assert_trees_all_close(found, (y.detach().numpy(), last.detach().numpy()), rtol=1e-5, atol=1e-5)
    wanted = read(layer, lambda tensor: tensor.grad), x.grad.numpy(), first.grad.numpy()
    chex.assert_trees_all_close(gradients, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def params() -> Any:
    return nn.meta.unbox(BidirectionalGru(HIDDEN, INIT, INIT).init(jax.random.key(0), X))


@pytest.mark.nightly
def test_no_state_and_no_gradient_passes_from_document_to_document(params: Any) -> None:
    """And two halves with the state between them are the whole."""
    layer, starts = BidirectionalGru(HIDDEN, INIT, INIT), np.zeros((BATCH, LENGTH), bool)
    starts[:, [0, 3]] = True
    weights = drawn(BATCH, LENGTH, 2 * HIDDEN)

    def together(params: Any, x: jax.Array) -> Any:
        y, (last, begun) = layer.apply(params, x, starts=starts)
        return jnp.sum(weights * y), (y, last, begun)

    def apart(params: Any, x: jax.Array) -> Any:
        (a, (_, begun)), (b, (last, _)) = (layer.apply(params, part) for part in (x[:, :3], x[:, 3:]))
        y = jnp.concatenate([a, b], axis=1)
        return jnp.sum(weights * y), (y, last, begun)

    found, expected = (jax.jit(jax.grad(it, argnums=(0, 1), has_aux=True))(params, X) for it in (together, apart))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    one, own = Gru(HIDDEN, INIT, INIT), {"params": params["params"]["forward"]}
    whole, last = one.apply(own, X)
    first, state = one.apply(own, X[:, :2])
    second, state = one.apply(own, X[:, 2:], state)
    chex.assert_trees_all_close((jnp.concatenate([first, second], axis=1), state), (whole, last), atol=1e-6)


def test_states_stay_float32_where_products_are_bfloat16(params: Any) -> None:
    own = {"params": params["params"]["forward"]}
    found, state = Gru(HIDDEN, INIT, INIT, dtype=jnp.bfloat16).apply(own, X)
    assert (found.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(found.astype(np.float32), Gru(HIDDEN, INIT, INIT).apply(own, X)[0], atol=0.03)


def test_the_backward_pass_makes_no_product_of_the_kernels_size_at_every_token() -> None:
    kernel, gates, zeros = jnp.zeros((7, 3, 7)), jnp.zeros((2, 3, 3, 7)), jnp.zeros((2, 7))
    gradient = jax.grad(lambda kernel: jnp.sum(recurrence(gates, kernel, zeros[0], zeros)[0]))
    scans = [equation for equation in jax.make_jaxpr(gradient)(kernel).jaxpr.eqns if equation.primitive.name == "scan"]
    made = [[v.aval.shape for e in scan.params["jaxpr"].eqns for v in e.outvars] for scan in scans]
    assert len(made) == 2 and all((7, 2) in shapes for shapes in made)
    assert max(np.prod(shape) for shapes in made for shape in shapes) < kernel.size


def test_eight_devices_give_what_one_gives() -> None:
    layer = Gru(HIDDEN, INIT)
    boxed = layer.init(jax.random.key(0), X)
    params = nn.meta.unbox(boxed)

    def gradients(params: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(lambda params: jnp.sum(jnp.square(layer.apply(params, x)[0])))(params)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    places = sharding.boxed(boxed, mesh), sharding.batch(X, mesh)
    found = jax.jit(sharding.scoped(gradients, mesh), in_shardings=places)(params, X)
    chex.assert_trees_all_close(found, jax.jit(gradients)(params, X), rtol=1e-5, atol=1e-6)


def test_a_direction_starts_anew_at_its_own_end_of_a_document() -> None:
    """A document ends at the last token that is read; padding that is marked as a start changes no state."""
    starts = jnp.array([[True, False, True, False, True]])
    assert ends(starts, False) is starts and ends(None, True) is None
    assert ends(starts, True).tolist() == [[False, True, False, True, False]]
    random = np.random.default_rng(2)
    gates, kernel, bias, first = (
        np.float32(random.normal(size=size)) for size in ((1, 5, 3, 2), (2, 3, 2), (2,), (1, 2))
    )
    read = lambda part, state, **masks: recurrence(gates[:, part], kernel, bias, state, **masks)  # noqa: E731
    y, last = read(slice(0, 5), first, starts=jnp.array([[False, False, True, False, False]]))
    before, after = read(slice(0, 2), first)[0], read(slice(2, 5), jnp.zeros((1, 2)))
    np.testing.assert_allclose(y, jnp.concatenate([before, after[0]], axis=1), atol=1e-6)
    np.testing.assert_allclose(last, after[1], atol=1e-6)
    masks = {"starts": jnp.array([[False, False, True]]), "visible": jnp.array([[True, True, False]])}
    kept, state = read(slice(0, 3), first, **masks)
    np.testing.assert_allclose(state, before[:, 1], atol=1e-6)
    assert not kept[:, 2].any()
