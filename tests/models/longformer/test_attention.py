"""Longformer's attention beside a formula with masks of whole rows, and its cost."""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers.attention import bands
from plmjax.layers.attention.recording import collect
from plmjax.models.longformer.attention import GlobalTokens, Inputs, LongformerAttention
from tests.products import flops

ROWS, LENGTH, HEADS, SIZE = 3, 37, 2, 5
REAL = np.arange(LENGTH) < np.array([[37], [26], [3]])
GLOBAL = np.zeros((ROWS, LENGTH), bool)
GLOBAL[0, [0, 9, 36]] = GLOBAL[1, 25] = True
X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, LENGTH, HEADS * SIZE)), jnp.float32)


def attention(dilation: tuple[int, ...] = (1,), **execution: Any) -> LongformerAttention:
    init = nn.initializers.normal(0.6)
    return LongformerAttention(HEADS * SIZE, HEADS, 0.0, init, Execution(**execution), dilation=dilation)


def reading(is_global: np.ndarray, widest: int) -> Inputs:
    tokens = GlobalTokens.of(jnp.asarray(is_global), 4) if is_global.any() else None
    return Inputs(jnp.asarray(REAL), jnp.asarray(REAL & ~is_global), tokens, widest)


def formula(
    params: Any, x: jax.Array, is_global: np.ndarray, *, side: int, dilation: tuple[int, ...] = (1,) * HEADS
) -> jax.Array:
    """The same with scores [B N T S], as the paper has it; the dilation of each head."""

    def projected(name: str) -> jax.Array:
        return jnp.einsum("btd,dnh->btnh", x, params[name]["kernel"]) + params[name]["bias"]

    def attended(suffix: str, visible: np.ndarray) -> jax.Array:
        query, key, value = (projected(name + suffix) for name in ("query", "key", "value"))
        scores = jnp.einsum("btnh,bsnh->bnts", query, key) / SIZE**0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
        return jnp.einsum("bnts,bsnh->btnh", weights, value)

    distance = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    near = np.stack([(distance <= side * step) & (distance % step == 0) for step in dilation])
    keys = REAL[:, None, None, :]
    local = attended("", (near | is_global[:, None, None, :]) & keys) * REAL[..., None, None]
    everywhere = attended("_global", np.broadcast_to(keys, (ROWS, HEADS, LENGTH, LENGTH)))
    context = jnp.where(is_global[..., None, None], everywhere, local)
    return jnp.einsum("btnh,nhd->btd", context, params["output"]["kernel"]) + params["output"]["bias"]


CASES = ("blockwise", 3, 3), ("dense", 20, 20), ("blockwise", 2, 6)
"""Backends, tokens on each side, and the widest side of the layers."""


@pytest.mark.parametrize(
    "is_global",
    [pytest.param(GLOBAL, id="global"), pytest.param(np.zeros_like(GLOBAL), id="local", marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize(
    ("backend", "side", "widest"),
    [("dense", 2, 6), *(pytest.param(*case, marks=pytest.mark.nightly) for case in CASES)],
)
def test_bands_and_global_tokens_are_whole_rows_with_masks(
    backend: str, side: int, widest: int, is_global: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows narrower than the bands and longer than the row; gradients of all parameters and of the input."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    check(attention(attention=backend), reading(is_global, widest), is_global, side=side)


def check(module: LongformerAttention, rows: Inputs, is_global: np.ndarray, side: int, **dilation: Any) -> None:
    """The outputs of real tokens, and the gradients of all parameters and of the input.

    The formula is computed in float64. The tolerance is relative to the largest number of a kind, because the gradient
    of the keys' biases is zero but for rounding.
    """
    init = functools.partial(module.init, deterministic=True)
    params = nn.meta.unbox(jax.jit(init)(jax.random.key(1), X, rows, side))["params"]
    assert {f"{name}_global" for name in ("query", "key", "value")} < params.keys()

    def of(function: Any, dtype: Any = np.float32) -> Any:
        def loss(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = function(params, x)
            return jnp.sum(jnp.sin(y) * REAL[..., None]), y

        inputs = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), (params, X))
        (of_params, of_x), y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(*inputs)
        return of_params, of_x, y

    found = of(lambda params, x: module.apply({"params": params}, x, rows, jnp.int32(side), deterministic=True))
    with jax.enable_x64(True):
        exact = jax.device_get(of(lambda params, x: formula(params, x, is_global, side=side, **dilation), np.float64))
    for ours, theirs in zip(found, exact, strict=True):
        largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(theirs))
        chex.assert_trees_all_close(jax.tree.map(np.float64, ours), theirs, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("dilation", [(1, 50), pytest.param((3, 2), marks=pytest.mark.nightly)], ids=str)
def test_dilated_windows_are_whole_rows_with_masks(dilation: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head has its own dilation; one of them is longer than the row."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 2)
    none = np.zeros_like(GLOBAL)
    check(attention(dilation), reading(none, 2), none, side=2, dilation=dilation)


def test_weights_of_a_dilated_head_are_those_of_its_own_window() -> None:
    module, rows = attention((1, 3)), reading(np.zeros_like(GLOBAL), 2)

    def read() -> dict[str, jax.Array]:
        with collect(True) as found:
            module.init_with_output(jax.random.key(1), X, rows, 2, deterministic=True)
        return found

    ((weights,),) = jax.jit(lambda: [*read().values()])()
    distance = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    near = np.stack([(distance <= 2 * step) & (distance % step == 0) for step in (1, 3)])
    seen = near & REAL[:, None, None, :] & REAL[:, None, :, None]
    np.testing.assert_array_equal(weights > 0, seen)


def test_every_block_drops_probabilities_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    module = LongformerAttention(4, 1, 0.5, nn.initializers.ones)
    ones = jnp.ones((1, 16, 4))
    everywhere = jnp.ones((1, 16), bool)
    rows, keys = Inputs(everywhere, everywhere, None, 3), {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    output, _ = jax.jit(lambda: module.init_with_output(keys, ones, rows, 3, deterministic=False))()
    blocks = np.asarray(output[0, :, 0]).reshape(4, 4)
    assert len({block.tobytes() for block in blocks}) == 4


@pytest.mark.parametrize(
    ("backend", "dilation"), [("dense", 1), pytest.param("blockwise", 2, marks=pytest.mark.nightly)]
)
def test_time_and_memory_grow_as_the_rows(backend: str, dilation: int) -> None:
    """Products counted in a step, and the memory of the compiled step, with four global tokens or a dilated head."""
    module = LongformerAttention(
        8, 2, 0.0, nn.initializers.normal(0.02), Execution(attention=backend), dilation=(1, dilation)
    )

    def step(params: Any, x: jax.Array) -> jax.Array:
        chosen = jnp.arange(x.shape[1])[None] < (4 if dilation == 1 else 0)
        tokens = GlobalTokens.of(chosen, 4) if dilation == 1 else None
        rows = Inputs(jnp.ones_like(chosen), ~chosen, tokens, 50)
        return jnp.sum(jnp.sin(module.apply(params, x, rows, 50, deterministic=True)))

    few = Inputs(*2 * (jnp.ones((1, 8), bool),), None, 50)
    init = functools.partial(module.init, deterministic=True)
    params = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, 8, 8)), few, 50))

    def cost(length: int) -> tuple[float, int]:
        x, gradient = jax.ShapeDtypeStruct((1, length, 8), jnp.float32), jax.grad(step)
        compiled = jax.jit(gradient).lower(params, x).compile()
        return flops(gradient, params, x), compiled.memory_analysis().temp_size_in_bytes

    shorter, longer = cost(1024), cost(2048)
    assert longer[0] <= 2.1 * shorter[0]
    assert longer[1] <= 2.1 * shorter[1]
