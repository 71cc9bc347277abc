"""The order in which the gradients of a layer's parameters travel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.sharded_parameter import ShardedParameter, gather


def begin(piece: jax.Array) -> jax.Array:
    return 2 * piece


def finish(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    assert blocks.shape == shape
    return jnp.concatenate([blocks, blocks + 1])


def total(sizes: list[int], together: bool, values: list[jax.Array]) -> jax.Array:
    pieces = [ShardedParameter(value, begin, finish) for value in values]
    params = gather(pieces) if together else [piece.unbox() for piece in pieces]
    assert [param.shape for param in params] == [(2 * size,) for size in sizes]
    return sum(jnp.sum(jnp.sin(param)) for param in params)


@pytest.mark.parametrize("sizes", [[2, 8, 3], [4, 4], [5]])
def test_parameters_and_gradients_are_those_of_every_piece_alone(sizes: list[int]) -> None:
    values = [jnp.arange(size) / size for size in sizes]
    both = (jax.value_and_grad(lambda *given: total(sizes, *given), 1)(each, values) for each in (True, False))
    together, alone = map(jax.tree.leaves, both)
    for found, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_gradients_of_smaller_parameters_begin_when_the_blocks_of_larger_ones_are_summed() -> None:
    """Two pieces are at least of the mean size: their blocks wait for each other, and two gradients for them."""
    sizes = [2, 8, 3, 7]
    values = [jnp.ones(size) for size in sizes]
    equations = jax.make_jaxpr(jax.grad(lambda values: total(sizes, True, values)))(values).jaxpr.eqns
    (barrier,) = [one for one in equations if one.primitive.name == "optimization_barrier"]
    assert [each.aval.shape for each in barrier.invars] == [(4,), (8,), (6,), (7,)]
