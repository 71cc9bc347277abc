"""The ways of parameters between devices; gradients themselves are compared in test_step.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.objectives.objective import LossSums
from plmjax.parallel import sharding
from plmjax.parallel.rings import Rings
from plmjax.parallel.shares import Shares
from plmjax.training import gradients
from tests import devices_in_turn

MESH = Mesh(np.array(jax.devices()).reshape(8, 1, 1), ("data", "fsdp", "tensor"))
RINGS = Rings((2, 4))


def placed(*spec: str | None) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*spec))


def test_both_axes_of_a_slice_carry_the_same_number_of_bytes() -> None:
    shapes = [(4, 16, 64), (4, 64, 16), (4, 16, 16), (4, 16, 16), (64, 16), (16,)]
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    owned = [placed(None, None, "data"), placed(None, "data"), *[placed(None, "data")] * 2, placed("data"), placed()]
    found = gradients.routes(RINGS, params, owned, [True] * 4 + [False] * 2)
    assert [route.dimension for route in found] == [-1, -2, -2, -2, -2, 0]
    stacked = [sum(params[i].size for i in range(4) if found[i].first == axis) for axis in (0, 1)]
    assert stacked[0] == stacked[1]
    assert [route.halves for route in found] == [False] * 4 + [True, False]


def test_single_parameters_begin_with_different_axes_unless_one_is_larger_than_the_rest() -> None:
    params = [jax.ShapeDtypeStruct((size, 16), jnp.float32) for size in (32, 16, 16)]
    found = gradients.routes(RINGS, params, [placed("data")] * 3, [False] * 3)
    assert [(route.first, route.halves) for route in found] == [(0, False), (1, False), (1, False)]
    whole = gradients.routes(RINGS, params[:1], [placed()], [False])
    assert (whole[0].dimension, whole[0].halves) == (0, False)


def test_a_parameter_as_large_as_all_others_together_has_an_axis_for_itself() -> None:
    params = [jax.ShapeDtypeStruct((size, 8), jnp.float32) for size in (8, 8, 32, 8, 8)]
    found = gradients.routes(RINGS, params, [placed("data")] * 5, [True] * 5)
    assert [route.first for route in found] == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_device_computes_with_its_own_rows_and_key(accumulation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients are summed in the dtype of the copy. Two microbatches of a device have keys of their own."""
    monkeypatch.setattr(jax, "shard_map", devices_in_turn.shard_map)
    params = {"layers": jnp.ones((2, 8, 8)), "scale": jnp.ones(8)}
    owned = {"layers": placed(None, "data"), "scale": placed()}
    whole, dtypes = dict.fromkeys(params, placed()), {"layers": jnp.dtype("bfloat16"), "scale": jnp.dtype("float32")}
    shares = Shares(owned, whole, dtypes, {"layers": True, "scale": False}, RINGS)
    batch = {"x": jnp.arange(16.0)}

    def microstep(values: float, params: dict, carry: jax.Array, batch: dict, key: jax.Array) -> tuple:
        def loss(params: dict) -> jax.Array:
            layers = params["layers"].unbox()
            assert (layers.shape, layers.dtype) == ((2, 8, 8), jnp.bfloat16)
            return values * jnp.sum(batch["x"]) * (jnp.sum(layers.astype(jnp.float32)) + jnp.sum(params["scale"]))

        drawn = jnp.full(len(batch["x"]), jax.random.uniform(key))
        sums = {"x": jnp.sum(batch["x"])}
        return jax.grad(loss)(params), LossSums(sums, {"rows": (sums["x"], jnp.float32(1))}, drawn)

    def run(params: dict, batch: dict, carry: jax.Array, values: jax.Array) -> tuple:
        inputs = gradients.Inputs(values, carry, ("batch",), batch, jax.random.key(0))
        return gradients.of_pieces(microstep, shares, params, inputs, accumulation)

    given = (jax.device_put(params, owned), jax.device_put(batch, placed("data")), jnp.zeros(16), jnp.float32(0.5))
    gradient, sums = jax.jit(sharding.scoped(run, MESH))(*given)
    for name, leaf in gradient.items():
        assert leaf.dtype == jnp.float32, name
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 60.0))
    assert sums.losses == {"x": 120} and sums.metrics == {"rows": (120, 8 * accumulation)}
    drawn = np.asarray(sums.carry).reshape(8, 2)
    assert len(np.unique(drawn)) == 8 * accumulation
    assert (drawn[:, 0] == drawn[:, 1]).all() == (accumulation == 1)
