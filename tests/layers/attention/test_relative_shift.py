"""The shift against its formula, in which each vector of a distance is looked up, in float64."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms, Window
from plmjax.experiment import Mesh
from plmjax.layers.attention import backends, bands
from plmjax.layers.attention.backends import BACKENDS, blockwise, dense
from plmjax.layers.attention.relative_shift import ContentBias, PositionalScores, copy_per_shard, distances
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding
from plmjax.planning.collectives import collectives
from plmjax.planning.hlo import Program
from tests.products import equations

ROWS, QUERIES, MEMORY, HEADS, SIZE = 4, 7, 5, 4, 3
KEYS = MEMORY + QUERIES
EMPTY = np.arange(KEYS) >= np.array([[0], [3], [1], [0]])


class Case(NamedTuple):
    """Rows of queries behind a memory. tables: of vectors, each for equally many rows."""

    conditions: tuple = (Causal(),)
    queries: int = QUERIES
    keys: int = KEYS
    memory: int = MEMORY
    later: bool = False
    tables: int = 1
    clamp: int = 100


CASES = {
    "causal": Case(),
    "causal, a memory that is empty in part": Case((Causal(), KeyMask(EMPTY))),
    "causal, without memory": Case(keys=QUERIES, memory=0),
    "a window": Case((Causal(), Window(3, 0))),
    "as many keys for each query": Case((Causal(), Window(MEMORY, 0))),
    "far distances are alike": Case(clamp=4),
    "both sides": Case((), later=True),
    "both sides, a table for each row": Case((), later=True, tables=ROWS),
    "a table for two rows": Case(tables=2),
    "a window on both sides": Case((Window(2, 1),), later=True),
    "one query": Case(queries=1, keys=MEMORY + 1),
    "a cache with room": Case(queries=3, keys=KEYS, memory=MEMORY),
}


def inputs_of(case: Case) -> dict[str, np.ndarray]:
    """Queries, keys, values, u, v, and the vectors of all distances, whose rows are the distances from -30 on."""
    random = np.random.default_rng(0)
    rows = {"query": case.queries, "key": case.keys, "value": case.keys}
    arrays = {name: random.normal(size=(ROWS, length, HEADS, SIZE)) for name, length in rows.items()}
    vectors = {name: random.normal(size=(HEADS, SIZE)) for name in ("u", "v")}
    return arrays | vectors | {"of_distance": random.normal(size=(case.tables, 61, HEADS, SIZE))}


def formula(case: Case, query: Any, key: Any, *, value: Any, u: Any, v: Any, of_distance: Any) -> jax.Array:
    """softmax((q_i + u) . k_j + (q_i + v) . r[i - j]) V over the visible keys."""
    mask_terms = MaskTerms(case.conditions, case.memory)
    distance = case.memory + np.arange(case.queries)[:, None] - np.arange(case.keys)
    found = of_distance[:, np.minimum(distance, case.clamp) + 30]  # [G T S N H]
    scores = jnp.einsum("BTNH,BSNH->BNTS", query + u, key) + jnp.einsum(
        "BTNH,BTSNH->BNTS", query + v, jnp.repeat(found, ROWS // case.tables, axis=0)
    )
    hidden = mask_terms.bias(case.queries, case.keys)
    visible = np.ones((1, 1, 1, 1), bool) if hidden is None else hidden == 0
    return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf)), value)


def shifted(backend, case: Case, query, *, key, value, u, v, of_distance) -> jax.Array:
    """The same by the terms."""
    rows = np.minimum(distances(case.queries, case.keys, case.memory, later=case.later), case.clamp) + 30
    terms = ContentBias(u), PositionalScores(v, of_distance[:, rows], case.queries)
    mask_terms = MaskTerms(case.conditions, case.memory)
    return backend(query, key, value, mask_terms=mask_terms, terms=terms, rate=0.0, dropout_key=None)


def value_and_gradients(function: Any, inputs: Any) -> tuple[Any, Any]:
    def loss(inputs: Any) -> tuple[jax.Array, jax.Array]:
        context = function(**inputs)
        return jnp.sum(jnp.sin(context)), context

    gradients, context = jax.jit(jax.grad(loss, has_aux=True))(inputs)
    return context, gradients


@functools.cache
def expected(name: str) -> tuple[Any, Any]:
    with jax.enable_x64(True):
        found = value_and_gradients(functools.partial(formula, CASES[name]), inputs_of(CASES[name]))
        return jax.device_get(found)


def agrees(name: str, backend: Any) -> None:
    inputs = jax.tree.map(np.float32, inputs_of(CASES[name]))
    found = value_and_gradients(functools.partial(shifted, backend, CASES[name]), inputs)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected(name)), strict=True):
        assert np.abs(theirs).max() > 0.01
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max())


@pytest.mark.parametrize("name", CASES)
def test_the_shift_is_a_lookup_of_distances(name: str) -> None:
    agrees(name, dense)


@pytest.mark.parametrize(
    "name", ["causal, a memory that is empty in part", pytest.param("a table for two rows", marks=pytest.mark.nightly)]
)
def test_blocks_have_their_own_distances(name: str) -> None:
    """Blocks that divide neither the queries nor the keys."""
    agrees(name, functools.partial(blockwise, block=3))


@pytest.mark.parametrize(("name", "attention"), [("a window", "blockwise"), ("a window on both sides", "dense")])
def test_bands_have_their_own_distances(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 2)
    case = CASES[name]
    assert bands.Bands.of(MaskTerms(case.conditions, case.memory), case.queries, case.keys).blocks > 1
    agrees(name, BACKENDS[attention])


def test_blocks_of_queries_and_a_head_at_a_time_get_their_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(backends, "LANES", 2)
    agrees("both sides, a table for each row", dense)


@pytest.mark.parametrize("later", [False, True])
def test_nothing_is_looked_up_and_one_product_makes_all_scores(later: bool) -> None:
    """And without later keys it has a number for each query and key, besides the additional column."""
    query, key = jnp.ones((ROWS, QUERIES, HEADS, SIZE)), jnp.ones((ROWS, KEYS, HEADS, SIZE))
    places = np.arange(QUERIES), np.arange(KEYS)
    table = jnp.ones((1, len(distances(QUERIES, KEYS, MEMORY, later=later)), HEADS, SIZE))
    term = PositionalScores(jnp.ones((HEADS, SIZE)), table, QUERIES)
    traced = jax.make_jaxpr(lambda term: term.scores(query, key, *places))(term)
    found = [equation for _, equation in equations(traced.jaxpr)]
    assert not {"gather", "dynamic_slice", "scatter"} & {each.primitive.name for each in found}
    products = [each.outvars[0].aval.shape for each in found if each.primitive.name == "dot_general"]
    columns = KEYS + 1 + (QUERIES - 1 if later else 0)
    assert [sorted(shape) for shape in products] == [sorted((1, ROWS, HEADS, QUERIES, columns))]


def test_devices_sum_the_gradient_of_the_projection_alone() -> None:
    """Not that of the projected vectors, [R N H], which are the same for all rows."""
    mesh, features = meshes.make(Mesh(data=8), jax.devices()), 2
    rows = NamedSharding(mesh, PartitionSpec("data"))
    query, key = (jax.ShapeDtypeStruct((8, length, HEADS, SIZE), jnp.float32) for length in (QUERIES, KEYS))
    kernel = jax.ShapeDtypeStruct((features, HEADS, SIZE), jnp.float32)

    def loss(kernel: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
        table = jnp.einsum("GRD,DNH->GRNH", copy_per_shard(jnp.ones((KEYS, features)), 8), kernel)
        term = PositionalScores(jnp.zeros((HEADS, SIZE)), table, QUERIES)
        return jnp.sum(jnp.sin(term.scores(query, key, np.arange(QUERIES), np.arange(KEYS))))

    shardings = NamedSharding(mesh, PartitionSpec()), rows, rows
    step = jax.jit(sharding.with_mesh(jax.grad(loss), mesh), in_shardings=shardings)
    summed = collectives(Program(step.lower(kernel, query, key).compile().as_text()))
    assert [(one.kind, one.elements, one.count) for one in summed] == [("all-reduce", features * HEADS * SIZE, 1)]


def test_a_compiled_step_looks_nothing_up_and_holds_one_array_of_scores_more() -> None:
    """Forward and backward, beside attention without terms."""
    rows, length, heads, size = 2, 96, 4, 16

    def compiled(terms: bool) -> Any:
        def loss(query: jax.Array, key: jax.Array, table: jax.Array) -> jax.Array:
            own = (PositionalScores(jnp.zeros((heads, size)), table, length),) if terms else ()
            settings = {"mask_terms": MaskTerms((Causal(),)), "terms": own, "rate": 0.0, "dropout_key": None}
            return jnp.sum(jnp.sin(dense(query, key, key, **settings)))

        one = jax.ShapeDtypeStruct((rows, length, heads, size), jnp.float32)
        table = jax.ShapeDtypeStruct((1, length, heads, size), jnp.float32)
        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(one, one, table).compile()

    plain, relative = compiled(False), compiled(True)
    assert "gather" not in relative.as_text() and "scatter" not in relative.as_text()
    taken = [one.memory_analysis().temp_size_in_bytes for one in (plain, relative)]
    scores = 4 * rows * heads * length * (length + 1)
    assert 0 < taken[1] - taken[0] < 1.5 * scores  # the product before its change of shape, and vectors
