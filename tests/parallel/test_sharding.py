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
    places = sharding.boxed(params, mesh(*axes))
    assert places["layer"]["kernel"].spec == parameter
    plain = nn.meta.unbox(params)
    state = {"first": plain, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    over_data = sharding.over_data(params, places, mesh(*axes))
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
    cut = sharding.over_data(params, sharding.boxed(params, grid), grid)
    assert cut["table"].spec == PartitionSpec(None, "data") and cut["bias"].spec == PartitionSpec("data")
