"""The kernel that moves rows, computed by XLA: against numpy, in the scores of distances, and on several devices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.experiment import Mesh
from plmjax.layers.attention import row_rotation
from plmjax.layers.attention.backends import dense
from plmjax.layers.attention.relative_shift import PositionalScores
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.planning.collectives import collectives
from plmjax.planning.compilation import compile_for_slice
from plmjax.planning.hlo import Program
from tests.layers.attention.test_relative_shift import agrees, by_day

INTERPRETED = functools.partial(row_rotation.rotate_rows, interpret=True)


def moved(x: np.ndarray) -> np.ndarray:
    """The rows by numpy, one by one."""
    height = x.shape[-2]
    return np.stack([np.roll(x[..., row, :], row - (height - 1), axis=-1) for row in range(height)], axis=-2)


@pytest.mark.parametrize(
    ("height", "width", "block"),
    [(21, 128, 1 << 17), (21, 256, 8 * 256), (40, 128, 16 * 128), (150, 128, 1 << 17), (9, 128, 1)],
    ids=["a part of a block", "blocks of 8 rows", "blocks of 16", "more rows than columns", "least"],
)
def test_every_row_moves_by_one_place_less(
    height: int, width: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient moves them back."""
    monkeypatch.setattr(row_rotation, "BLOCK", block)
    random = np.random.default_rng(0)
    x, cotangent = random.normal(size=(2, 2, 3, height, width)).astype(np.float32)
    found, back = jax.vjp(INTERPRETED, x)
    np.testing.assert_array_equal(found, moved(x))
    np.testing.assert_array_equal(moved(np.asarray(back(jnp.asarray(cotangent))[0])), cotangent)


@pytest.mark.parametrize("name", by_day("causal, a memory that is empty in part", "both sides, a table for each row"))
def test_scores_of_distances_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_rotation, "is_faster", lambda columns: True)
    monkeypatch.setattr(row_rotation, "SUBLANES", 1)
    monkeypatch.setattr(row_rotation, "rotate_rows", INTERPRETED)
    agrees(name, dense)


def scores(query: jax.Array, table: jax.Array) -> jax.Array:
    term = PositionalScores(jnp.zeros(query.shape[2:]), table, query.shape[1])
    places = np.arange(query.shape[1])
    return term.scores(query, query, places, places)


def test_fewer_rows_than_a_register_has_change_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is written is one row."""
    monkeypatch.setattr(row_rotation, "is_faster", lambda columns: True)
    monkeypatch.setattr(row_rotation, "rotate_rows", lambda x: pytest.fail("the kernel was called"))
    assert scores(jnp.ones((1, 7, 2, 4)), jnp.ones((1, 7, 2, 4))).shape == (1, 2, 7, 7)


@pytest.mark.parametrize("kind", [*(chip.kind for chip in topologies.CHIPS.values()), "cpu", "NVIDIA H100"])
def test_the_kernel_is_for_chips_on_which_it_pays(kind: str) -> None:
    """On the slow ones for wide rows alone; not in a program without a mesh."""
    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    slow = kind in [topologies.CHIPS[name].kind for name in ("v2", "v3")]
    chip = kind in [chip.kind for chip in topologies.CHIPS.values()]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)):
        assert [row_rotation.is_faster(columns) for columns in (2048, 2049)] == [chip and not slow, chip]
    assert not row_rotation.is_faster(2049)


def test_a_model_within_a_device_knows_its_kind() -> None:
    mesh = meshes.make(Mesh(data=8), jax.devices())

    @functools.partial(sharding.with_mesh, mesh=mesh)
    def kinds() -> list[str]:
        around = jax.sharding.get_abstract_mesh()
        with sharding.within_device():
            inside = jax.sharding.get_abstract_mesh()
            assert inside.empty and not around.empty
            return [each.abstract_device.device_kind for each in (around, inside)]

    assert kinds() == [jax.devices()[0].device_kind] * 2


def test_devices_move_their_own_rows_and_heads() -> None:
    mesh = meshes.make(Mesh(data=4, tensor=2), jax.devices())
    x = np.random.default_rng(0).normal(size=(4, 2, 9, 128)).astype(np.float32)
    place = NamedSharding(mesh, PartitionSpec("data", "tensor"))
    compiled = (
        jax.jit(sharding.with_mesh(INTERPRETED, mesh), in_shardings=place, out_shardings=place).lower(x).compile()
    )
    assert collectives(Program(compiled.as_text())) == []
    np.testing.assert_array_equal(compiled(jax.device_put(x, place)), moved(x))


@pytest.mark.parametrize(
    ("topology", "wide", "kernels"),
    [
        ("v3:2x2", 0, 2),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in (("v3:2x2", 24, 0), ("v5e:2x2", 24, 2))),
    ],
)
def test_the_kernel_is_compiled_where_it_pays(
    topology: str, wide: int, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, for rows that the devices share. There are 24 columns."""
    monkeypatch.setattr(row_rotation, "WIDE", wide)
    devices = topologies.parse(topology).devices()
    mesh = meshes.make(Mesh(data=len(devices)), devices)
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def array(count: int, place: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, 24, 2, 8), jnp.float32, sharding=place)

    def loss(query: jax.Array, table: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(scores(query, table)))

    step = jax.jit(sharding.with_mesh(jax.grad(loss, (0, 1)), mesh))
    _, text, _ = compile_for_slice(step.lower(array(8, rows), array(8, rows)))
    called = [one for one, _ in Program(text).top_level if one.target == "tpu_custom_call"]
    assert len(called) == kernels
