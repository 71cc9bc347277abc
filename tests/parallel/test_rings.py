"""Rings of devices: what is gathered and summed along them, and the meshes that have them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax import experiment
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.parallel.rings import AXIS, Rings, are_supported
from plmjax.planning import hlo
from plmjax.planning.compilation import compile_for_slice
from tests import devices_in_turn

AXES = ("data", "fsdp", "tensor")


def gather(rings: Rings, piece: jax.Array, dimension: int, first: int) -> jax.Array:
    return rings.finish(rings.begin(piece, dimension, first), piece.shape, dimension, first)


@pytest.mark.parametrize(
    ("shape", "first", "dimension", "features"),
    [((2, 4), 0, -3, 8), ((2, 4), 1, -2, 8), ((4, 2), 1, -1, 8), ((4, 2), 0, -2, 128), ((2, 4), 1, -1, 128)],
)
def test_pieces_make_the_array_and_gradients_are_summed(
    shape: tuple[int, int], first: int, dimension: int, features: int
) -> None:
    """Rows of several heads are one axis if a head has fewer than 128 features."""
    rings = Rings(shape)
    draws = np.random.default_rng(0)
    array = draws.integers(-8, 8, (16, 24, features)).astype(np.float32)  # sums of integers are exact in any order
    gradients = draws.integers(-8, 8, (8, *array.shape)).astype(np.float32)
    pieces = PartitionSpec(*[AXIS if place == dimension else None for place in (-3, -2, -1)])

    def on_device(piece: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
        whole, backward = jax.vjp(lambda piece: gather(rings, piece, dimension, first), piece)
        return whole[None], backward(own[0])[0]

    wholes, summed = jax.jit(
        devices_in_turn.shard_map(
            on_device, in_specs=(pieces, PartitionSpec(AXIS)), out_specs=(PartitionSpec(AXIS), pieces)
        )
    )(array, gradients)
    np.testing.assert_array_equal(wholes, np.broadcast_to(array, (8, *array.shape)))
    np.testing.assert_array_equal(summed, gradients.sum(0))


@pytest.mark.parametrize("dimension", [-1, -2])
def test_blocks_of_a_gather_and_of_a_scatter_are_stored_in_the_order_of_their_axes(dimension: int) -> None:
    """Without these constraints the kernel of attention's output has the layout {2,1,0,4,3} on a TPU, whose product
    wants the axis of the pieces last. Rows of several heads, with fewer features than a tile has lanes, are one axis.
    """
    rings, every = Rings((2, 4)), PartitionSpec(AXIS)

    def there_and_back(piece: jax.Array) -> jax.Array:
        whole, back = jax.vjp(lambda piece: gather(rings, piece, dimension, 0), piece)
        return back(whole)[0]

    traced = jax.make_jaxpr(devices_in_turn.shard_map(there_and_back, in_specs=(every,), out_specs=every))(
        jnp.ones((8, 8, 128))
    )
    ways = [one.params["call_jaxpr"].eqns for one in traced.jaxpr.eqns if "call_jaxpr" in one.params]
    for equations in (ways[-1], traced.jaxpr.eqns):  # there, and back
        constraints = [one for one in equations if one.primitive.name == "layout_constraint"]
        shapes = [one.invars[0].aval.ndim for one in constraints]
        assert [one.params["layout"].major_to_minor for one in constraints] == [tuple(range(n)) for n in shapes]
        assert max(shapes) == (5 if dimension == -1 else 6)  # and an axis of the devices


@pytest.mark.parametrize("dimension", [-2, -1])
def test_halves_of_pieces_are_summed_along_both_axes(dimension: int) -> None:
    """A piece of three rows has halves of two and one."""
    rings, draws = Rings((2, 4)), np.random.default_rng(0)
    arrays = draws.integers(-8, 8, (8, 24, 24)).astype(np.float32)
    pieces = PartitionSpec(*[AXIS if place == dimension else None for place in (-2, -1)])
    scatter = devices_in_turn.shard_map(
        lambda own: rings.bidirectional_reduce_scatter(own[0], dimension, jnp.bfloat16),
        in_specs=(PartitionSpec(AXIS),),
        out_specs=pieces,
    )
    summed = jax.jit(scatter)(arrays)
    assert summed.dtype == jnp.bfloat16
    np.testing.assert_array_equal(summed.astype(np.float32), arrays.sum(0))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_ring_visits_every_chip_of_a_line_and_no_hop_is_longer_than_two_links(size: int) -> None:
    hops = Rings((size, 2)).hops(0)
    for column in (0, 1):
        line = {sender // 2: receiver // 2 for sender, receiver in hops if sender % 2 == column}
        assert all(sender % 2 == receiver % 2 for sender, receiver in hops)
        visited = [0]
        while line[visited[-1]]:
            visited.append(line[visited[-1]])
        assert sorted(visited) == list(range(size))
        assert max(abs(sender - receiver) for sender, receiver in line.items()) <= 2


def mesh_of(topology: str, **sizes: int) -> Mesh:
    return meshes.make(experiment.Mesh(**sizes), topologies.parse(topology).devices())


def test_a_slice_has_rings_where_permutes_are_asynchronous_and_data_has_all_its_devices() -> None:
    for name, rings in (("v5e:4x8", Rings((4, 8))), ("v5e:4x4", Rings((4, 4))), ("v5e:1x1", None), ("v3:4x4", None)):
        assert Rings.of(mesh_of(name)) == rings
    whole = mesh_of("v5e:4x4")
    places = [device.coords[:2] for device in whole.devices.flat]
    assert list(map(tuple, places)) == [(row, column) for row in range(4) for column in range(4)]
    here = Mesh(np.array(jax.devices()).reshape(8, 1, 1), AXES)
    for other in (mesh_of("v5e:4x4", tensor=2), here, Mesh(whole.devices[::-1], AXES)):
        assert Rings.of(other) is None
    devices, two = (topologies.parse(name).devices() for name in ("v5e:4x4", "v5e:4x4*2"))
    halves = [*two[:8], *two[24:]]
    assert sorted(device.coords for device in halves) == sorted(device.coords for device in devices)
    found = [are_supported(some) for some in (devices, devices[:8], devices[:15], halves, two)]
    assert found == [True, True, False, False, False]


# A compiler for each generation, 3 to 8 s: pytest -m nightly tests/parallel/test_rings.py
@pytest.mark.nightly
@pytest.mark.parametrize("topology", ["v2:4x4", "v3:4x4", "v5e:8x8", "v6e:4x4"])
def test_generations_with_rings_are_those_whose_compiled_permutes_run_beside_computation(topology: str) -> None:
    part = topologies.parse(topology)
    devices = sorted(part.devices(), key=lambda device: (tuple(device.coords), getattr(device, "core_on_chip", 0)))
    mesh = Mesh(np.array(devices).reshape(-1, 1, 1), AXES)
    rows, columns = (int(size) for size in part.name.partition(":")[2].split("x"))
    rings = Rings((rows, columns * part.chip.devices))

    def on_device(piece: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return gather(rings, piece, -2, 0), jnp.tanh(x @ x)

    def described(shape: tuple[int, ...], *spec: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    specs = {"in_specs": (PartitionSpec(AXIS), PartitionSpec()), "out_specs": PartitionSpec()}
    step = jax.jit(jax.shard_map(on_device, mesh=mesh, **specs, check_vma=False))
    _, text, _ = compile_for_slice(step.lower(described((2048, 1024), AXIS), described((4096, 4096))))
    kinds = {one.opcode for one, _ in hlo.Program(text).every if one.opcode.startswith("collective-permute")}
    assert ("collective-permute-start" in kinds) == part.chip.rings
    assert kinds
