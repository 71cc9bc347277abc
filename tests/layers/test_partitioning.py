"""Where a mesh places the dimensions of an array."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.layers.partitioning import partition_spec, shard_counts, with_all_rows
from plmjax.parallel import sharding

AXES = ("batch", "heads")


def asked(question, shape: tuple[int, ...]):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    return sharding.with_mesh(lambda: question(shape, AXES), mesh)()


def test_dimensions_that_divide_are_divided() -> None:
    assert asked(partition_spec, (8, 6, 5)) == PartitionSpec(("data", "fsdp"), "tensor")
    assert asked(shard_counts, (8, 6, 5)) == (4, 2)
    assert asked(partition_spec, (6, 3)) == PartitionSpec(None, None) and asked(shard_counts, (6, 3)) == (1, 1)


def test_all_rows_are_on_every_device_and_other_dimensions_may_be_divided() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor"))
    divided = jax.device_put(np.arange(16.0).reshape(8, 2), NamedSharding(mesh, PartitionSpec("data", "tensor")))
    found = jax.jit(sharding.with_mesh(with_all_rows, mesh))(divided)
    assert found.sharding.shard_shape(found.shape) == (8, 1)
    assert with_all_rows(divided) is divided  # outside of a mesh
