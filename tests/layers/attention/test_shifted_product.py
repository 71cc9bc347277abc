"""The kernel that multiplies and moves rows: against a lookup of every pair, in the scores of distances, and compiled
for chips.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.experiment import Mesh
from plmjax.layers.attention import shifted_product
from plmjax.layers.attention.backends import dense
from plmjax.layers.attention.relative_shift import PositionalScores
from plmjax.models.deberta.attention import KeyDistanceScores
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.planning.collectives import collectives
from plmjax.planning.compilation import compile_for_slice
from plmjax.planning.hlo import Program
from tests.layers.attention.test_relative_shift import agrees

INTERPRETED = functools.partial(shifted_product.shifted_product, interpret=True)
HEADS, SIZE = 2, 8


def looked_up(rows: jax.Array, table: jax.Array, columns: int, *, transposed: bool) -> jax.Array:
    """The formula: the vector of each pair, 0 for a pair without one."""
    length, distances = rows.shape[1], table.shape[1]
    index = np.arange(columns) - np.arange(length)[:, None] + length - 1
    found = jnp.where((index < distances)[..., None, None], table[:, np.minimum(index, distances - 1)], 0)
    found = jnp.repeat(found, len(rows) // len(table), axis=0)
    return jnp.einsum("BTNH,BTSNH->BNST" if transposed else "BTNH,BTSNH->BNTS", rows, found)


def both_ways(function: Any, rows: Any, table: Any, cotangent: Any, **settings: Any) -> Any:
    """The products and the gradients of both factors: one program."""

    def run(rows: jax.Array, table: jax.Array, cotangent: jax.Array) -> Any:
        found, back = jax.vjp(lambda *x: function(*x, **settings), rows, table)
        return found, back(cotangent)

    return jax.jit(run)(rows, table, cotangent)


SIZES = {
    "whole pieces": (2, 1, 128, 128, 255),
    "parts of pieces": (2, 2, 130, 200, 329),
    "blocks of rows and columns": (1, 1, 1100, 600, 1699),
    "causal, with a memory": (2, 1, 128, 256, 256),
    "two rows share a table": (4, 2, 64, 64, 127),
}
"""Rows of the batch, tables, rows, columns, distances."""


# Each size once, and both values of the others.
@pytest.mark.parametrize(
    ("name", "transposed", "by_stride"),
    [
        ("whole pieces", True, False),
        ("parts of pieces", False, False),
        pytest.param("blocks of rows and columns", False, False, marks=pytest.mark.nightly),  # 3 s
        ("causal, with a memory", False, False),
        ("two rows share a table", True, True),
    ],
)
def test_every_pair_gets_the_product_of_its_distance(name, transposed, by_stride, monkeypatch) -> None:
    """Both ways to move rows, and both gradients."""
    monkeypatch.setattr(shifted_product, "WITHOUT_STRIDE", () if by_stride else ("",))
    (batch, tables, length, columns, distances), random = SIZES[name], np.random.default_rng(0)
    rows, table = (
        random.normal(size=(*shape, HEADS, SIZE)).astype(np.float32) for shape in ((batch, length), (tables, distances))
    )
    shape = (batch, HEADS, *((columns, length) if transposed else (length, columns)))
    cotangent = random.normal(size=shape).astype(np.float32)
    expected, of_expected = both_ways(looked_up, rows, table, cotangent, columns=columns, transposed=transposed)
    found, of_found = both_ways(INTERPRETED, rows, table, cotangent, columns=columns, transposed=transposed)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    for ours, theirs in zip(of_found, of_expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max())


def test_products_of_bfloat16_have_the_digits_of_float32() -> None:
    """The cotangent is rounded once, as that of XLA's product."""
    random = np.random.default_rng(0)
    rows, table = (jnp.asarray(random.normal(size=(1, n, HEADS, SIZE)), jnp.bfloat16) for n in (128, 255))
    cotangent = jnp.asarray(random.normal(size=(1, HEADS, 128, 128)), jnp.bfloat16).astype(jnp.float32)
    settings = {"columns": 128, "transposed": True}
    exact = (x.astype(jnp.float32) for x in (rows, table))
    expected, of_expected = both_ways(looked_up, *exact, cotangent, **settings)
    found, of_found = both_ways(INTERPRETED, rows, table, cotangent, **settings)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    for ours, theirs in zip(of_found, of_expected, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_array_equal(ours, theirs.astype(jnp.bfloat16))


def test_scores_of_distances_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shifted_product, "is_faster", lambda *_: True)
    monkeypatch.setattr(shifted_product, "shifted_product", INTERPRETED)
    agrees("both sides, a table for each row", dense)


@pytest.mark.parametrize("kind", ["TPU v3", "TPU v5 lite", "cpu", "NVIDIA H100"])
def test_the_kernel_is_for_chips_and_rows_for_which_it_pays(kind: str) -> None:
    """Not for a few tokens that are written, nor other lengths of which most would be padding, nor for vectors that
    exceed the memory, and not without a mesh.
    """
    chip = kind.startswith("TPU")
    sizes = {(512, 512): chip, (110, 250): chip, (4096, 5120): chip, (1, 512): False, (150, 300): False,
             (512, 8832): False, (5120, 5120): False}  # fmt: skip

    def found(rows: int, columns: int) -> bool:
        return shifted_product.is_faster(jax.ShapeDtypeStruct((1, rows, HEADS, 64), jnp.bfloat16), columns)

    assert not found(512, 512)
    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)):
        assert {each: found(*each) for each in sizes} == sizes


@pytest.mark.nightly  # 3 s; by day test_relative_shift.py has what devices send
@pytest.mark.parametrize("tables", [4, 1], ids=["a table for each device", "one table"])
def test_devices_compute_their_own_rows_and_heads(tables: int) -> None:
    """With a table for each device they send nothing; the gradient of one table is the sum over the devices."""
    mesh = meshes.make(Mesh(data=4, tensor=2), jax.devices())
    random = np.random.default_rng(0)
    rows, table = (random.normal(size=(n, 64, HEADS, SIZE)).astype(np.float32) for n in (4, tables))
    parts = "data", "data" if tables == 4 else None
    places = tuple(NamedSharding(mesh, PartitionSpec(part, None, "tensor")) for part in parts)

    def gradients(function: Any, *x: jax.Array) -> Any:
        return jax.grad(lambda *x: jnp.sum(jnp.sin(function(*x, 64, transposed=False))), (0, 1))(*x)

    step = jax.jit(
        sharding.with_mesh(functools.partial(gradients, INTERPRETED), mesh), in_shardings=places, out_shardings=places
    )
    compiled, expected = step.lower(rows, table).compile(), jax.jit(functools.partial(gradients, looked_up))
    if tables == 4:
        assert collectives(Program(compiled.as_text())) == []
    placed = jax.device_put((rows, table), places)
    for ours, theirs in zip(compiled(*placed), expected(rows, table), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("topology", "term"),
    [
        ("v5e:2x2", PositionalScores),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in (("v5e:2x2", KeyDistanceScores), ("v3:2x2", PositionalScores), ("v3:2x2", KeyDistanceScores),
                        ("v4:2x2x1", KeyDistanceScores), ("v6e:2x2", KeyDistanceScores))
        ),
    ],
)  # fmt: skip
def test_the_kernel_is_compiled(topology: str, term: Any) -> None:
    """Forward and backward, for rows that the devices share."""
    devices = topologies.parse(topology).devices()
    mesh = meshes.make(Mesh(data=len(devices)), devices)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    query, table = (jax.ShapeDtypeStruct((8, count, HEADS, 64), jnp.bfloat16, sharding=rows) for count in (120, 239))

    def loss(query: jax.Array, table: jax.Array) -> jax.Array:
        places = np.arange(query.shape[1])
        return jnp.sum(jnp.sin(term(None, table, query.shape[1]).scores(query, query, places, places)))

    step = jax.jit(sharding.with_mesh(jax.grad(loss, (0, 1)), mesh))
    _, text, _ = compile_for_slice(step.lower(query, table))
    called = [one for one, _ in Program(text).top_level if one.target == "tpu_custom_call"]
    assert len(called) == 2
