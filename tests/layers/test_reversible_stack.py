"""The reversible loop: equal to plain autodiff, the same random bits twice, memory that does not grow with depth."""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers import reversible_stack
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import Projection
from tests.systems.modules import drawn

BLOCKS, ROWS, LENGTH, FEATURES = 3, 2, 5, 6
INIT = nn.initializers.normal(0.5)
PASSES: list[tuple[int, bool]] = []
"""The functions that were traced, and whether each was given what it had kept."""


class Block(nn.Module):
    """Two functions: a product with dropout, drawn noise and signs that are kept; and a product with an input."""

    rate: float = 0.0
    dtype: Any = jnp.float32

    functions = 2

    def setup(self) -> None:
        shape = ((FEATURES,), ("embed", "mlp"), INIT, self.dtype)
        self.maps = [Projection(*shape), Projection(*shape)]
        self.dropout = Dropout(self.rate)

    def function(self, number: int, x: jax.Array, context: jax.Array, *, inputs: jax.Array, kept: Any) -> tuple:
        PASSES.append((number, kept is not None))
        if number == 1:
            return jnp.tanh(self.maps[1](x)) * inputs, None
        signs = jnp.where(x > 0, 1, -1).astype(jnp.int8) if kept is None else kept
        noise = jax.random.normal(self.make_rng("sampling"), x.shape) if self.has_rng("sampling") else 0.0
        y = self.maps[0](jnp.sin(x * signs) + context + noise)
        return self.dropout(y, self.rate == 0), signs


class Model(nn.Module):
    """A reversible stack of such blocks on two copies of its input."""

    rate: float = 0.0
    dtype: Any = jnp.float32
    execution: Execution = Execution()
    blocks: int = BLOCKS

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array) -> jax.Array:
        block = Block(self.rate, self.dtype, name="layers")
        inputs = jnp.linspace(0.5, 1.5, self.blocks)
        streams = reversible_stack.reversible_stack(
            block, self.blocks, self.execution, streams=(x, x), context=context, inputs=inputs
        )
        return jnp.concatenate(streams, axis=-1)


RNGS = {"dropout": jax.random.key(3), "sampling": jax.random.key(4)}
X = jax.random.normal(jax.random.key(1), (ROWS, LENGTH, FEATURES))
CONTEXT = jax.random.normal(jax.random.key(2), (FEATURES,))


def params_of(model: nn.Module) -> Any:
    return drawn(jax.eval_shape(model.init, jax.random.key(0), X, CONTEXT)["params"], deviation=0.3)


def gradients(model: Model, rngs: Any = None) -> Any:
    """Output and gradients by parameters and input; a new program at every call."""
    params = params_of(model)

    def score(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = model.apply({"params": params}, x, CONTEXT, rngs=rngs)
        return jnp.sum(jnp.sin(found)), found

    return jax.jit(jax.grad(score, argnums=(0, 1), has_aux=True))(params, X)


def test_gradients_are_those_of_plain_autodiff(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout and draws, which are the same again in the backward pass; each block has its own."""
    model = Model(0.3)
    found = gradients(model, RNGS)
    monkeypatch.setattr(reversible_stack, "_run", lambda *arguments: reversible_stack._run_forward(*arguments)[0])
    expected = gradients(model, RNGS)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found[0][1]).min() > 0


def test_every_block_draws_its_own_values() -> None:
    """Blocks with equal parameters drop different values from what they add."""
    params = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), params_of(Model(0.5, blocks=2)))
    apply = jax.jit(lambda model, params: model.apply({"params": params}, X, CONTEXT, rngs=RNGS), static_argnums=0)
    one, two = apply(Model(0.5, blocks=1), jax.tree.map(lambda x: x[:1], params)), apply(Model(0.5, blocks=2), params)
    first, second = (np.asarray(each)[..., :FEATURES] == 0 for each in (one - jnp.tile(X, 2), two - one))
    assert 0.2 < first.mean() < 0.8 and 0.2 < second.mean() < 0.8 and (first != second).any()


def test_what_a_function_keeps_is_given_back() -> None:
    """Nothing is computed again that rounding could change."""
    PASSES.clear()
    gradients(Model())
    forward = PASSES.index((0, True))  # the first function of the backward pass is the second of the block
    assert (1, False) in PASSES[:forward] and (0, False) not in PASSES[forward:]


@pytest.mark.nightly
def test_another_execution_changes_nothing() -> None:
    found = gradients(Model(0.3, execution=Execution(remat="dots", unroll=2)), RNGS)
    chex.assert_trees_all_close(found, gradients(Model(0.3), RNGS), rtol=1e-5, atol=1e-5)


def test_streams_stay_in_float32_where_functions_are_in_bfloat16() -> None:
    (_, of_x), found = gradients(Model(dtype=jnp.bfloat16))
    assert found.dtype == of_x.dtype == jnp.float32
    (_, expected), _ = gradients(Model())
    assert 0 < np.abs(of_x - expected).mean() < 0.02 * np.abs(expected).mean()


def test_memory_does_not_grow_with_depth() -> None:
    """As plain autodiff's does: a stream for each function and more."""
    x = jax.ShapeDtypeStruct((8, 512, FEATURES), jnp.float32)

    @functools.cache
    def bytes_of(blocks: int) -> int:
        model = Model(blocks=blocks)
        params = params_of(model)
        score = lambda params, x: jnp.sum(model.apply({"params": params}, x, CONTEXT))  # noqa: E731
        compiled = jax.jit(jax.grad(score)).lower(params, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    stream = 8 * 512 * FEATURES * 4
    signs = 8 * 512 * FEATURES
    assert bytes_of(24) - bytes_of(8) < 16 * signs * 1.1 + 0.1 * stream
