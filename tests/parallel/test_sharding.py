"""Where parameters and optimizer state lie on a mesh."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

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


def test_what_does_not_divide_evenly_is_left_whole():
    axes, grid = ("vocab", "embed"), mesh(1, 4, 2)
    assert sharding.partition_spec(axes, (30, 12), grid) == PartitionSpec("tensor", "fsdp")
    assert sharding.partition_spec(axes, (31, 12), grid) == PartitionSpec(None, "fsdp")
    assert sharding.partition_spec(axes, (30, 14), grid) == PartitionSpec("tensor", None)
    assert sharding.partition_spec(("batch", "length"), (8, 6), mesh(2, 4, 1)) == PartitionSpec(("data", "fsdp"), None)
    assert sharding.partition_spec(("batch", "length"), (12, 6), mesh(2, 4, 1)) == PartitionSpec(None, None)


def test_zero_cuts_the_longest_dimension_but_the_last_and_a_table_along_its_features():
    """A device holds the bytes of its part. A state of another shape, such as Adafactor's sums of rows, is whole."""
    grid, axes = mesh(8, 1, 1), {"table": ("vocab", "embed"), "bias": ("vocab",)}
    shapes = {"first": (24, 16, 64), "second": (16, 24, 64), "last": (3, 5, 64), "none": (3, 5, 7),
              "table": (64, 16), "bias": (64,)}  # fmt: skip
    plain = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = {name: nn.LogicallyPartitioned(leaf, axes.get(name, (None,) * 3)) for name, leaf in plain.items()}
    cut = sharding.shard_over_data(params, sharding.shardings_of(params, grid), grid)
    found = {name: list(one.spec).index("data") for name, one in cut.items() if "data" in one.spec}
    assert found == {"first": 0, "second": 1, "last": 2, "table": 1, "bias": 0}
    held = [jax.ShapeDtypeStruct(plain[name].shape, jnp.bfloat16, sharding=cut[name]) for name in ("bias", "none")]
    assert sharding.bytes_on_device(held) == 2 * (64 / 8 + 3 * 5 * 7)
    state = {"mean": plain, "rows": plain | {"table": jax.ShapeDtypeStruct((16,), jnp.float32)}}
    placed = sharding.optimizer_state(state, plain, cut, grid)
    assert placed["mean"]["table"] == cut["table"] and placed["rows"]["table"].spec == PartitionSpec()
