"""The loop over layers: lanes in and out, unrolled or not, rematerialised or not."""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Causal, MaskTerms, Window
from plmjax.contracts.sharded_parameter import ShardedParameter
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.dropout import Dropout
from plmjax.layers.stack import repeat, stack
from tests.systems.modules import drawn

LAYERS, ROWS, LENGTH, FEATURES = 4, 2, 5, 6
WINDOWS = (1, 4, 1, 4)
INIT = nn.initializers.normal(0.5)
EXECUTIONS = (Execution(unroll=2), Execution(remat="full"), Execution(remat="dots", unroll=4))


class Layer(nn.Module):
    """x + attention(tanh(x)) over what the layer's cache holds and x itself, inside a window; returns the new cache.

    If there is a collection "sampling", it adds a draw of it instead of what dropout leaves.
    """

    rate: float = 0.0

    def setup(self) -> None:
        self.attention = MultiHeadAttention(FEATURES, 2, 0.0, INIT)
        self.dropout = Dropout(self.rate)

    def __call__(
        self, x: jax.Array, cache: KeyValues, window: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, KeyValues]:
        y = jnp.tanh(x)
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=position, axis=1)
        cache = jax.tree.map(write, cache, self.attention.key_values(y))
        mask_terms = MaskTerms((Causal(), Window(window, 0)), position)
        y = self.attention.attend(y, cache, mask_terms, deterministic=True)
        if self.has_rng("sampling"):
            return x + jax.random.normal(self.make_rng("sampling"), x.shape), cache
        return x + self.dropout(y, self.rate == 0), cache


class Model(nn.Module):
    """Layers with parameters of their own, or one layer shared by all; each with a window of its own."""

    kind: str
    execution: Execution = Execution()
    rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, caches: KeyValues, position: Any) -> tuple[jax.Array, Any]:
        def body(layer: Layer, x: jax.Array, lanes: tuple[KeyValues, jax.Array]) -> tuple[jax.Array, Any]:
            x, cache = layer(x, *lanes, position)
            return x, {"cache": cache, "x": x}

        loop = repeat if self.kind == "shared" else stack
        layer, inputs = Layer(self.rate, name="layers"), (caches, jnp.array(WINDOWS))
        return loop(body, layer, LAYERS, execution=self.execution, x=x, inputs=inputs)


def caches(length: int = LENGTH) -> KeyValues:
    return KeyValues(*(jnp.zeros((LAYERS, ROWS, length, 2, FEATURES // 2)) for _ in range(2)))


X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, LENGTH, FEATURES)), jnp.float32)
KINDS = ("own", "shared", "pieces")
"""Parameters of its own for each layer, one layer shared by all, and parameters that are gathered one layer ahead."""
every_kind = pytest.mark.parametrize("kind", KINDS)


def turned(piece: jax.Array) -> jax.Array:
    """A half of `ShardedParameter.unbox` whose result shows that it was called."""
    return jnp.flip(piece, -1)


def upside_down(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The other half."""
    assert blocks.shape == shape
    return jnp.flip(blocks, -2)


@functools.cache
def params_of(kind: str) -> Any:
    shapes = jax.eval_shape(lambda: Model(kind).init(jax.random.key(0), X, caches(), 0))
    params = drawn(shapes, deviation=0.5)
    if kind != "pieces":
        return params
    return jax.tree.map(lambda leaf: ShardedParameter(leaf, turned, upside_down) if leaf.ndim > 2 else leaf, params)


def by_hand(kind: str, params: Any) -> tuple[jax.Array, list[Any]]:
    """A Python loop over single layers."""
    x, outputs = X, []
    for index in range(LAYERS):
        own = params["params"]["layers"]
        if kind != "shared":
            own = nn.meta.unbox(jax.tree.map(lambda leaf: leaf[index], own))  # noqa: B023 (used at once)
        cache = jax.tree.map(lambda lane: lane[0], caches())
        x, cache = Layer().apply({"params": own}, x, cache, WINDOWS[index], 0)
        outputs.append({"cache": cache, "x": x})
    return x, jax.tree.map(lambda *lanes: jnp.stack(lanes), *outputs)


@every_kind
def test_lanes_are_those_of_a_loop_over_single_layers(kind: str) -> None:
    params = params_of(kind)
    found, expected = jax.jit(lambda: (Model(kind).apply(params, X, caches(), 0), by_hand(kind, params)))()
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
@every_kind
def test_execution_changes_nothing(kind: str) -> None:
    """Outputs, lanes and gradients, with dropout."""

    def loss(params: Any, execution: Execution) -> tuple[jax.Array, Any]:
        module = Model(kind, execution, rate=0.3)
        x, outputs = module.apply(params, X, caches(), 0, rngs={"dropout": jax.random.key(1)})
        return jnp.sum(jnp.sin(x)), (x, outputs)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    params = params_of(kind)
    looped = run(params, Execution())
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(looped))  # an element is a sum of numbers of this size
    for execution in EXECUTIONS:
        chex.assert_trees_all_close(run(params, execution), looped, rtol=1e-5, atol=1e-6 * largest)


@every_kind
def test_every_layer_draws_values_of_its_own(kind: str) -> None:
    """Dropout, by which a dropped element is not added, and draws from another collection."""

    def added(collection: str) -> np.ndarray:
        rngs = {collection: jax.random.key(0)}
        _, outputs = jax.jit(Model(kind, rate=0.5).apply)(params_of(kind), X, caches(), 0, rngs=rngs)
        return np.diff([X, *np.asarray(outputs["x"])], axis=0)

    dropped = added("dropout") == 0
    assert (np.abs(dropped.mean(axis=(1, 2, 3)) - 0.5) < 0.25).all()
    assert len({mask.tobytes() for mask in dropped}) == LAYERS
    assert len({draw.round(4).tobytes() for draw in added("sampling")}) == LAYERS
