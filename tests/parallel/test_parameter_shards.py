"""Shares of the parameters and of the optimizer state: where they lie, how they travel, and that they add up."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.parallel import parameter_shards as shares_of_parameters
from plmjax.parallel import sharding
from plmjax.parallel.parameter_shards import ParameterShards


def boxed() -> dict[str, Any]:
    """A stack of kernels, one of biases of heads, one of scales, a table of tokens."""

    def leaf(shape: tuple[int, ...], *axes: str) -> nn.LogicallyPartitioned:
        return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), axes)

    return {
        "kernel": leaf((3, 16, 64), "layers", "embed", "mlp"),
        "bias": leaf((3, 4, 16), "layers", "heads", "kv"),
        "scale": leaf((3, 16), "layers", "embed"),
        "table": leaf((32, 16), "vocab", "embed"),
    }


def shares(exchanged: str = "float32", zero: bool = True) -> tuple[ParameterShards, Mesh]:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2, 1), ("data", "fsdp", "tensor"))
    return ParameterShards.of(boxed(), mesh, jnp.bfloat16, jnp.dtype(exchanged), zero=zero), mesh


def test_matrices_are_copied_in_the_dtype_of_products_and_tables_are_not() -> None:
    """The gradient of a table has the dtype of products along rings."""
    found, _ = shares()
    float32 = {"scale": jnp.float32, "table": jnp.float32}
    assert found.dtypes == {"kernel": jnp.bfloat16, "bias": jnp.bfloat16, **float32}
    assert found.ring_dtypes == found.dtypes | {"table": jnp.bfloat16}
    assert set(jax.tree.leaves(shares("bfloat16")[0].dtypes)) == {jnp.dtype("bfloat16")}


def test_a_copy_is_whole_and_its_gradient_returns_to_the_shares() -> None:
    found, _ = shares()
    params = jax.tree.map(lambda s: jnp.ones(s.shape), nn.meta.unbox(boxed()))
    params = jax.device_put(params, found.sharded)
    assert params["kernel"].addressable_shards[0].data.shape == (3, 8, 16)  # fsdp and data
    params["kernel"] += 1e-3  # which bfloat16 rounds away
    copy = jax.jit(found.gather)(params)
    for one, place in zip(jax.tree.leaves(copy), jax.tree.leaves(found.gathered), strict=True):
        assert one.sharding.is_equivalent_to(place, one.ndim)
    described = found.copy(params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), copy) == jax.tree.map(lambda x: (x.shape, x.dtype), described)
    assert (np.asarray(copy["kernel"]) == 1).all() and (np.asarray(copy["table"]) == 1).all()
    back = jax.jit(found.scatter)(copy)
    assert {leaf.dtype for leaf in jax.tree.leaves(back)} == {np.dtype("float32")}
    assert back["kernel"].sharding.is_equivalent_to(found.sharded["kernel"], 3)


@pytest.mark.parametrize("exchanged", ["float32", "bfloat16"])
def test_gradients_of_the_shards_of_a_batch_are_added_in_the_dtype_of_the_copy(exchanged: str) -> None:
    found, mesh = shares(exchanged)
    rows = jax.tree.map(lambda s: np.random.default_rng(0).random((4, *s.shape), np.float32), nn.meta.unbox(boxed()))
    placed = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("data")))
    total = jax.jit(lambda gradient: found.scatter(found.add(gradient)))(placed)
    expected, rounded = jax.tree.map(lambda x: x.sum(0), rows), set()
    for name, one in total.items():
        assert one.dtype == np.float32 and one.sharding.is_equivalent_to(found.sharded[name], one.ndim)
        np.testing.assert_allclose(one, expected[name], rtol=1e-2)
        if np.abs(np.asarray(one) - expected[name]).max() > 1e-4:
            rounded.add(name)
    assert rounded == ({"kernel", "bias"} if exchanged == "float32" else set(total))


@pytest.mark.parametrize(("smallest", "found"), [(128, {"kernel"}), (129, set()), (8, {"kernel", "bias"})])
def test_pieces_are_those_of_large_matrices_of_layers_that_devices_divide(
    smallest: int, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of eight devices owns 128 values of a layer's kernel (16 x 64), and 8 of its bias (4 x 16)."""
    monkeypatch.setattr(shares_of_parameters, "SMALLEST_PIECE", smallest)
    assert {name for name, kept in shares()[0].stacked.items() if kept} == found
    whole, _ = shares(zero=False)  # every device owns all that it computes with
    assert not any(jax.tree.leaves(whole.stacked)) and whole.sharded == whole.gathered


def mesh(data: int, fsdp: int, tensor: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(data, fsdp, tensor), ("data", "fsdp", "tensor"))


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
