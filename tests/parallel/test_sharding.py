"""Where parameters and optimizer state lie on a mesh."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.parallel import sharding


def mesh(data: int, fsdp: int, tensor: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(data, fsdp, tensor), ("data", "fsdp", "tensor"))


def kernel() -> nn.LogicallyPartitioned:
    """A stack of feed-forward kernels [L D F]."""
    return nn.LogicallyPartitioned(jax.ShapeDtypeStruct((3, 16, 64), jnp.float32), ("layers", "embed", "mlp"))


@pytest.mark.parametrize(
    ("axes", "parameter", "moment"),
    [
        ((8, 1, 1), PartitionSpec(None, None, None), PartitionSpec(None, "data", None)),
        ((2, 4, 1), PartitionSpec(None, "fsdp", None), PartitionSpec(None, "fsdp", "data")),
        ((2, 2, 2), PartitionSpec(None, "fsdp", "tensor"), PartitionSpec(None, "fsdp", "tensor")),
    ],
)
def test_zero_cuts_every_moment_that_data_parallelism_leaves_whole(axes, parameter, moment):
    params = {"layer": {"kernel": kernel()}}
    places = sharding.shardings_of(params, mesh(*axes))
    assert places["layer"]["kernel"].spec == parameter
    plain = nn.meta.unbox(params)
    state = {"first": plain, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    over_data = sharding.shard_over_data(params, places, mesh(*axes))
    assert over_data["layer"]["kernel"].spec == moment
    cut = sharding.optimizer_state(state, plain, over_data, mesh(*axes))
    assert cut["first"]["layer"]["kernel"].spec == moment
    assert cut["count"].spec == PartitionSpec()
    whole = sharding.optimizer_state(state, plain, places, mesh(*axes))
    assert whole["first"]["layer"]["kernel"].spec == parameter


def test_zero_cuts_a_vocabulary_along_its_features():
    table = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((64, 16), jnp.float32), ("vocab", "embed"))
    bias = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((64,), jnp.float32), ("vocab",))
    params, grid = {"table": table, "bias": bias}, mesh(8, 1, 1)
    cut = sharding.shard_over_data(params, sharding.shardings_of(params, grid), grid)
    assert cut["table"].spec == PartitionSpec(None, "data") and cut["bias"].spec == PartitionSpec("data")


def test_bytes_on_a_device_are_those_of_its_part():
    grid = mesh(8, 1, 1)
    tree = {"cut": PartitionSpec("data"), "whole": PartitionSpec()}
    shapes = {"cut": jax.ShapeDtypeStruct((16, 3), jnp.float32), "whole": jax.ShapeDtypeStruct((5,), jnp.bfloat16)}
    placed = {
        name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(grid, tree[name]))
        for name, one in shapes.items()
    }
    assert sharding.bytes_on_device(placed) == 2 * 3 * 4 + 5 * 2


def test_what_does_not_divide_evenly_is_left_whole():
    axes, grid = ("vocab", "embed"), mesh(1, 4, 2)
    assert sharding.partition_spec(axes, (30, 12), grid) == PartitionSpec("tensor", "fsdp")
    assert sharding.partition_spec(axes, (31, 12), grid) == PartitionSpec(None, "fsdp")
    assert sharding.partition_spec(axes, (30, 14), grid) == PartitionSpec("tensor", None)
    assert sharding.partition_spec(("batch", "length"), (8, 6), mesh(2, 4, 1)) == PartitionSpec(("data", "fsdp"), None)
    assert sharding.partition_spec(("batch", "length"), (12, 6), mesh(2, 4, 1)) == PartitionSpec(None, None)


def test_zero_cuts_the_longest_dimension_but_the_last():
    grid = mesh(8, 1, 1)
    shapes = {"first": (24, 16, 64), "second": (16, 24, 64), "last": (3, 5, 64), "none": (3, 5, 7)}
    params = {
        name: nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), (None,) * 3)
        for name, shape in shapes.items()
    }
    cut = sharding.shard_over_data(params, sharding.shardings_of(params, grid), grid)
    assert {name: list(one.spec).index("data") for name, one in cut.items() if "data" in one.spec} == {
        "first": 0,
        "second": 1,
        "last": 2,
    }


def test_a_state_of_another_shape_than_its_parameter_is_whole():
    """As the row and column sums of Adafactor."""
    params = {"kernel": jax.ShapeDtypeStruct((16, 64), jnp.float32)}
    grid = mesh(8, 1, 1)
    own = {"kernel": NamedSharding(grid, PartitionSpec("data"))}
    state = {"mean": params, "rows": {"kernel": jax.ShapeDtypeStruct((16,), jnp.float32)}}
    found = sharding.optimizer_state(state, params, own, grid)
    assert found["mean"]["kernel"].spec == PartitionSpec("data") and found["rows"]["kernel"].spec == PartitionSpec()
