"""Parameters that are known without computing any, and the order in which their gradients travel."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.parameters import abstract_parameters
from plmjax.contracts.sharded_parameter import ShardedParameter, gather
from plmjax.contracts.system import Purpose
from plmjax.models.bert import BertConfig


def test_shapes_types_and_axes_are_those_of_the_first_parameters() -> None:
    config = BertConfig.tiny(num_hidden_layers=1)
    module, example = config.module(Purpose.PRETRAINING, Execution()), {"input_ids": jnp.zeros((2, 3), jnp.int32)}
    found, made = abstract_parameters(module, example), jax.jit(module.init)(jax.random.key(1), **example)["params"]
    assert jax.tree.structure(found) == jax.tree.structure(made)
    assert nn.get_partition_spec(found) == nn.get_partition_spec(made)
    for one, array in zip(jax.tree.leaves(found), jax.tree.leaves(made), strict=True):
        assert (one.shape, one.dtype) == (array.shape, array.dtype)


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


@pytest.mark.parametrize("sizes", [[2, 8, 3], [5]])
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
