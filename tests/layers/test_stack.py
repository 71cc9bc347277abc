"""The loop over layers: lanes in and out, alternating kinds, unrolled or not, rematerialised or not."""

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.visibility import Visibility
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.dropout import Dropout
from plmjax.layers.stack import repeat, stack

LAYERS, ROWS, LENGTH, FEATURES = 4, 2, 5, 6
INIT = nn.initializers.normal(0.5)
EXECUTIONS = (Execution(unroll=2), Execution(remat="full"), Execution(remat="dots", unroll=4))


class Layer(nn.Module):
    """x + attention(tanh(x)) over what the layer's cache holds and x itself, inside a window; returns the new cache."""

    window: int
    rate: float = 0.0

    def setup(self) -> None:
        self.attention = MultiHeadAttention(FEATURES, 2, 0.0, INIT)
        self.dropout = Dropout(self.rate)

    def visibility(self, position: jax.Array) -> Visibility:
        return Visibility(causal=True, window=(self.window, 0), query_offset=position)

    def probabilities(self, x: jax.Array, cache: KeyValues, position: jax.Array) -> jax.Array:
        return self.attention.probabilities(jnp.tanh(x), cache, self.visibility(position))

    def __call__(self, x: jax.Array, cache: KeyValues, position: jax.Array) -> tuple[jax.Array, KeyValues]:
        y = jnp.tanh(x)
        cache = cache.written(self.attention.key_values(y), position)
        y = self.attention.attend(y, cache, self.visibility(position), deterministic=True)
        return x + self.dropout(y, self.rate == 0), cache


class Model(nn.Module):
    """Layers of one kind, of two kinds that alternate (a window of 1 and one of all), or one layer shared by all."""

    kind: str
    execution: Execution = Execution()
    rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, caches: KeyValues, position: Any) -> tuple[jax.Array, Any]:
        def body(layer: Layer, x: jax.Array, cache: KeyValues) -> tuple[jax.Array, Any]:
            before = x
            x, cache = layer(x, cache, position)
            return x, {"cache": cache, "x": x, "probabilities": layer.probabilities(before, cache, position)}

        far = Layer(LENGTH, self.rate, name="far")
        if self.kind == "shared":
            return repeat(body, far, LAYERS, self.execution, x, caches)
        layers = (Layer(1, self.rate, name="near"), far) if self.kind == "alternating" else far
        return stack(body, layers, LAYERS, self.execution, x, caches)


def caches(length: int = LENGTH) -> KeyValues:
    return KeyValues(*(jnp.zeros((LAYERS, ROWS, length, 2, FEATURES // 2)) for _ in range(2)))


X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, LENGTH, FEATURES)), jnp.float32)
KINDS = ("own", "alternating", "shared")


def params_of(kind: str) -> Any:
    return nn.meta.unbox(Model(kind).init(jax.random.key(0), X, caches(), 0))


def by_hand(kind: str, params: Any) -> tuple[jax.Array, list[Any]]:
    """A Python loop over single layers."""
    x, outputs = X, []
    for index in range(LAYERS):
        near = kind == "alternating" and index % 2 == 0
        own = params["params"]["near" if near else "far"]
        if kind != "shared":
            own = jax.tree.map(lambda leaf: leaf[index // 2 if kind == "alternating" else index], own)  # noqa: B023
        cache = jax.tree.map(lambda lane: lane[0], caches())
        layer, before = Layer(1 if near else LENGTH), x
        x, cache = layer.apply({"params": own}, x, cache, 0)
        seen = layer.apply({"params": own}, before, cache, 0, method="probabilities")
        outputs.append({"cache": cache, "x": x, "probabilities": seen})
    return x, jax.tree.map(lambda *lanes: jnp.stack(lanes), *outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_are_those_of_a_loop_over_single_layers(kind: str) -> None:
    params = params_of(kind)
    found = Model(kind).apply(params, X, caches(), 0)
    chex.assert_trees_all_close(found, by_hand(kind, params), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_execution_changes_nothing(kind: str) -> None:
    """Outputs, lanes and gradients, with dropout."""

    def loss(params: Any, execution: Execution) -> tuple[jax.Array, Any]:
        module = Model(kind, execution, rate=0.3)
        x, outputs = module.apply(params, X, caches(), 0, rngs={"dropout": jax.random.key(1)})
        return jnp.sum(jnp.sin(x)), (x, outputs)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    params = params_of(kind)
    looped = run(params, Execution())
    for execution in EXECUTIONS:
        chex.assert_trees_all_close(run(params, execution), looped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_draws_dropout_of_its_own(kind: str) -> None:
    """What a layer drops it does not add."""
    rngs = {"dropout": jax.random.key(0)}
    _, outputs = jax.jit(Model(kind, rate=0.5).apply)(params_of(kind), X, caches(), 0, rngs=rngs)
    dropped = np.diff([X, *np.asarray(outputs["x"])], axis=0) == 0
    assert (np.abs(dropped.mean(axis=(1, 2, 3)) - 0.5) < 0.25).all()
    assert len({mask.tobytes() for mask in dropped}) == LAYERS


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_decodes_with_the_caches_of_its_layers(kind: str) -> None:
    params = params_of(kind)
    expected, outputs = Model(kind).apply(params, X, caches(), 0)
    state, found, decode = caches(), [], jax.jit(Model(kind).apply)
    for position in range(LENGTH):
        y, after = decode(params, X[:, position : position + 1], state, position)
        found.append(y)
        state = after["cache"]
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(state, outputs["cache"], rtol=1e-5, atol=1e-5)


def test_kinds_divide_the_layers() -> None:
    class Odd(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> Any:
            return stack(lambda layer, x, _: (x, None), (nn.Dense(3), nn.Dense(3)), 3, Execution(), x)

    with pytest.raises(ValueError, match="2 kinds divide, found 3"):
        Odd().init(jax.random.key(0), X)
