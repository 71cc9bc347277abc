"""The ways of parameters between devices; gradients themselves are compared in test_step.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.objectives.objective import LossInputs, LossSums
from plmjax.parallel import sharding
from plmjax.parallel.parameter_shards import ParameterShards
from plmjax.parallel.rings import AXIS, Rings
from plmjax.training.gradients import rings as gradients
from tests import devices_in_turn

MESH = Mesh(np.array(jax.devices()).reshape(8, 1, 1), ("data", "fsdp", "tensor"))
RINGS = Rings((2, 4))


def placed(*spec: str | None) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*spec))


def shapes(*given: tuple[int, ...]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in given]


def test_both_axes_of_a_slice_carry_the_same_number_of_bytes_of_layers() -> None:
    params = shapes((4, 16, 64), (4, 64, 16), (4, 16, 16), (4, 16, 16), (64, 16), (16,))
    found = gradients.first_axes(params, [True] * 4 + [False] * 2)
    loads = [sum(params[i].size for i in range(4) if found[i] == axis) for axis in (0, 1)]
    assert loads[0] == loads[1]
    assert found[4:] == [0, 0]
    # A parameter as large as all others together has an axis for itself.
    assert gradients.first_axes(shapes(*[(size, 8) for size in (8, 8, 32, 8, 8)]), [True] * 5) == [1, 1, 0, 1, 1]


def test_small_gradients_of_one_dtype_travel_together_and_large_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of which every device owns the whole is summed without a ring. Each is sent in a dtype of its own."""
    monkeypatch.setattr(gradients, "TOGETHER", 512)
    draws = np.random.default_rng(0)
    given = [((16, 24), -1, "float32"), ((64, 16), -2, "bfloat16"), ((8,), -1, "bfloat16"), ((3, 40), -1, "float32"),
             ((5,), 0, "float32"), ((2, 16, 3), -2, "bfloat16")]  # fmt: skip
    arrays = [draws.integers(-8, 8, (8, *shape)).astype(np.float32) for shape, _, _ in given]

    def on_device(*own: jax.Array) -> list[jax.Array]:
        _, dimensions, dtypes = zip(*given, strict=True)
        return gradients.scatter(RINGS, [leaf[0] for leaf in own], dimensions, [jnp.dtype(dtype) for dtype in dtypes])

    specs = [
        PartitionSpec(*[AXIS if place - len(shape) == dimension else None for place in range(len(shape))])
        for shape, dimension, _ in given
    ]
    scattered = devices_in_turn.shard_map(on_device, in_specs=(PartitionSpec(AXIS),) * len(given), out_specs=specs)
    for found, array, (_, _, dtype) in zip(jax.jit(scattered)(*arrays), arrays, given, strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.asarray(found, np.float32), array.sum(0))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_device_computes_with_its_own_rows_and_key(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients are summed in the dtypes that are sent. Two microbatches of a device have keys of their own."""
    monkeypatch.setattr(jax, "shard_map", devices_in_turn.shard_map)
    params = {"layers": jnp.ones((2, 8, 8)), "scale": jnp.ones(8), "table": jnp.ones((6, 8))}
    owned = {"layers": placed(None, "data"), "scale": placed(), "table": placed(None, "data")}
    whole, float32, bfloat16 = dict.fromkeys(params, placed()), jnp.dtype("float32"), jnp.dtype("bfloat16")
    dtypes = {"layers": bfloat16, "scale": float32, "table": float32}
    stacked = {"layers": True, "scale": False, "table": False}
    shares = ParameterShards(owned, whole, dtypes, dtypes | {"table": bfloat16}, stacked, RINGS)
    batch = {"x": jnp.arange(16.0)}

    def loss(inputs: LossInputs, weights: dict, batch: dict, key: jax.Array) -> tuple[jax.Array, LossSums]:
        layers = inputs.params["layers"].unbox()
        assert (layers.shape, layers.dtype) == ((2, 8, 8), jnp.bfloat16)
        others = jnp.sum(inputs.params["scale"]) + jnp.sum(inputs.params["table"])
        assert others.dtype == jnp.float32
        value = weights["x"] * jnp.sum(batch["x"]) * (jnp.sum(layers.astype(jnp.float32)) + others)
        drawn = jnp.full(len(batch["x"]), jax.random.uniform(key))
        sums = {"x": jnp.sum(batch["x"])}
        return value, LossSums(sums, {"rows": (sums["x"], jnp.float32(1))}, drawn)

    def run(params: dict, batch: dict, carry: jax.Array, factor: jax.Array) -> tuple:
        exchange = gradients.RingExchange(shares, ("batch",), accumulation)
        inputs = LossInputs(params, carry=carry, step=jnp.int32(0))
        gradient, sums = exchange(loss, inputs, {"x": factor}, batch=batch, key=jax.random.key(0))
        return gradient.params, sums

    given = (jax.device_put(params, owned), jax.device_put(batch, placed("data")), jnp.zeros(16), jnp.float32(0.5))
    gradient, sums = jax.jit(sharding.with_mesh(run, MESH))(*given)
    for name, leaf in gradient.items():
        assert leaf.dtype == jnp.float32, name
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 60.0))
    assert sums.losses == {"x": 120} and sums.metrics == {"rows": (120, 8 * accumulation)}
    drawn = np.asarray(sums.carry).reshape(8, 2)
    assert len(np.unique(drawn)) == 8 * accumulation
    assert (drawn[:, 0] == drawn[:, 1]).all() == (accumulation == 1)
