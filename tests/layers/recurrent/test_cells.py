"""What both kinds of recurrent layers share: dtypes, states from part to part and from device to device."""

import collections
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.layers.recurrent import gru, lstm
from plmjax.layers.recurrent.gru import Gru
from plmjax.layers.recurrent.lstm import Lstm, LstmState
from plmjax.parallel import sharding
from tests.products import equations
from tests.systems.modules import drawn

BATCH, LENGTH, HIDDEN = 4, 5, 6
X = np.random.default_rng(0).normal(size=(BATCH, LENGTH, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(BATCH, LENGTH, HIDDEN)).astype(np.float32)
INIT = nn.initializers.normal(0.5)
BIASED = {"bias_init": INIT, "recurrent_bias": True, "projected": 3, "cell_clip": 3.0, "projection_clip": 3.0}
COMPUTED = ("add", "sub", "mul", "div", "neg", "tanh", "logistic", "exp", "integer_pow", "reduce_sum")
LAYERS = {
    "gru": (Gru(5, INIT, INIT, dtype=jnp.bfloat16), 1),
    "lstm": (Lstm(5, INIT, dtype=jnp.bfloat16), 1),
    "projected lstm": (Lstm(5, INIT, dtype=jnp.bfloat16, **BIASED), 2),
}
"""Name -> (layer, number of its biases that are added outside of the loop over time)."""


@pytest.mark.parametrize("name", LAYERS)
def test_cells_and_their_gradients_are_computed_in_float32(name: str) -> None:
    """In bfloat16 are the biases of the projections alone, with two sums of the gradient of each."""
    layer, biases = LAYERS[name]
    x = jax.ShapeDtypeStruct((2, 6, 4), jnp.bfloat16)
    params = nn.meta.unbox(jax.eval_shape(layer.init, jax.random.key(0), x))
    gradient = jax.grad(lambda params, x: jnp.sum(jnp.sin(layer.apply(params, x)[0].astype(jnp.float32))), (0, 1))
    narrow = collections.Counter(
        equation.primitive.name
        for _, equation in equations(jax.make_jaxpr(gradient)(params, x).jaxpr)
        if equation.primitive.name in COMPUTED and equation.invars[0].aval.dtype == jnp.bfloat16
    )
    assert narrow == {"add": biases, "reduce_sum": 2 * biases}


every_kind = pytest.mark.parametrize("kind", [Gru, Lstm])


@every_kind
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


@pytest.mark.parametrize("reverse", [pytest.param(False, marks=pytest.mark.nightly), True])
@every_kind
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


def gru_loss(kernel: jax.Array) -> jax.Array:
    return jnp.sum(gru.recurrence(jnp.zeros((2, 3, 3, 7)), kernel, jnp.zeros(7), jnp.zeros((2, 7)))[0])


def lstm_loss(kernel: jax.Array) -> jax.Array:
    return jnp.sum(lstm.recurrence(jnp.zeros((2, 3, 4, 7)), kernel, LstmState.zeros(2, 7))[0])


@pytest.mark.parametrize(("loss", "gates"), [(gru_loss, 3), (lstm_loss, 4)])
def test_the_backward_pass_makes_no_product_of_the_kernels_size_at_every_token(loss: Any, gates: int) -> None:
    kernel = jnp.zeros((7, gates, 7))
    traced = jax.make_jaxpr(jax.grad(loss))(kernel)
    scans = [equation for equation in traced.jaxpr.eqns if equation.primitive.name == "scan"]
    made = [[v.aval.shape for e in scan.params["jaxpr"].eqns for v in e.outvars] for scan in scans]
    assert len(made) == 2 and all((7, 2) in shapes for shapes in made)
    assert max(np.prod(shape) for shapes in made for shape in shapes) < kernel.size


@pytest.mark.parametrize("layer", [Gru(HIDDEN, INIT), Lstm(HIDDEN, INIT, projected=4)], ids=["gru", "lstm"])
def test_eight_devices_give_what_one_gives(layer: nn.Module) -> None:
    boxed = jax.eval_shape(layer.init, jax.random.key(0), X)
    params = drawn(boxed, deviation=0.5)

    def gradients(params: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(lambda params: jnp.sum(jnp.square(layer.apply(params, x)[0])))(params)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    places = sharding.shardings_of(boxed, mesh), sharding.batch(X, mesh)
    assert tuple(places[0]["params"]["recurrent_kernel"].spec) == ("fsdp", None, "tensor")
    found = jax.jit(sharding.with_mesh(gradients, mesh), in_shardings=places)(params, X)
    chex.assert_trees_all_close(found, jax.jit(gradients)(params, X), rtol=1e-5, atol=1e-6)
