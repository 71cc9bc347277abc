"""Backends of attention for every kind of visibility, what of the scores is kept, and how many are made at once.

cuDNN's kernel needs a GPU, so JAX's own attention stands for it.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.contracts.bias_terms import BiasTerm, ScoreArray
from plmjax.contracts.mask_terms import MASKED, Causal, KeyMask, MaskTerms, SameSegment, Window
from plmjax.errors import UserError
from plmjax.layers.attention import backends
from plmjax.layers.attention.backends import SCORES, blockwise, dense
from plmjax.layers.attention.relative_shift import PositionalScores
from plmjax.layers.dropout import apply_dropout
from plmjax.parallel import sharding
from tests.products import equations

PADDED = KeyMask(jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]))
PACKED = SameSegment(*2 * (jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 3, 3]]),))
CUDNN = {
    "padding": (MaskTerms((PADDED,)), 6, 6),
    "causal": (MaskTerms((Causal(),)), 6, 6),
    "causal and packed": (MaskTerms((Causal(), PACKED)), 6, 6),
    "prefix": (MaskTerms((Causal(jnp.array([2, 4])),)), 6, 6),
    "window": (MaskTerms((Window(1, 2),)), 6, 6),
    "memory": (MaskTerms((Causal(),), query_offset=2), 6, 6),
    "later": (MaskTerms((Causal(),), query_offset=3, key_offset=3), 6, 6),
    "dense, of one query": (MaskTerms((Causal(),), query_offset=5), 1, 6),
    "dense, of an odd length": (MaskTerms((Causal(),)), 5, 5),
}
"""Name -> what is visible, queries and keys."""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own attention with what cuDNN's kernel takes: rows of an even length that see themselves, a whole mask."""

    def attend(*rows: jax.Array, **options: object) -> jax.Array:
        lengths, mask = (rows[0].shape[1], rows[1].shape[1]), options.get("mask")
        assert lengths[0] == lengths[1] and lengths[0] % 2 == 0
        assert mask is None or mask.shape[-2:] == lengths
        return jax.nn.dot_product_attention(*rows, **options, scale=1.0, implementation="xla")

    monkeypatch.setattr(backends, "fused_attention", attend)


def rows(queries: int = 6, keys: int = 6) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a query, a key and a value of two rows, two heads and eight features."""
    drawn = np.random.default_rng(0)
    query, key, value = (drawn.normal(size=(2, length, 2, 8)) for length in (queries, keys, keys))
    return tuple(jnp.asarray(each, jnp.float32) for each in (query, key, value))


@pytest.mark.parametrize("name", CUDNN)
@pytest.mark.usefixtures("kernel")
def test_cudnn_sees_what_dense_attention_sees(name: str) -> None:
    mask_terms, *lengths = CUDNN[name]
    settings = {"mask_terms": mask_terms, "terms": (), "rate": 0.1, "dropout_key": None}
    both = jax.jit(lambda *rows: [backends.BACKENDS[name](*rows, **settings) for name in ("cudnn", "dense")])
    found, expected = both(*rows(*lengths))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_cudnn_has_neither_dropout_nor_terms_of_the_scores() -> None:
    with pytest.raises(UserError, match=r"without dropout for --training.attention cudnn, found a rate of 0\.1; set"):
        backends.cudnn(*rows(), mask_terms=MaskTerms(), terms=(), rate=0.1, dropout_key=jax.random.key(0))
    with pytest.raises(UserError, match=r"without terms of the scores.*found tuple; take --training.attention dense"):
        backends.cudnn(*rows(), mask_terms=MaskTerms(), terms=((),), rate=0.0, dropout_key=None)


@pytest.mark.parametrize("name", ["dense", "blockwise"])
def test_softmax_and_context_of_bfloat16_are_summed_in_float32(name: str) -> None:
    """The factors of all products are bfloat16."""

    def attend(*inputs: jax.Array) -> jax.Array:
        settings = {"mask_terms": MaskTerms((Causal(),)), "terms": (), "rate": 0.0, "dropout_key": None}
        return jnp.sum(jnp.sin(backends.BACKENDS[name](*inputs, **settings)))

    inputs = [each.astype(jnp.bfloat16) for each in rows()]
    for function, sums in ((attend, {"float32"}), (jax.grad(attend, (0, 1, 2)), {"float32", "bfloat16"})):
        products = set()
        for place, equation in equations(jax.make_jaxpr(function)(*inputs).jaxpr):
            dtypes = {each.aval.dtype.name for each in equation.invars if each.aval.shape}
            if equation.primitive.name == "dot_general":
                assert dtypes == {"bfloat16"}, place
                products.add(equation.outvars[0].aval.dtype.name)
            assert equation.primitive.name not in ("exp", "reduce_max", "div") or dtypes == {"float32"}, place
        assert products == sums


@pytest.mark.parametrize("name", ["dense", "blockwise"])
def test_blocks_sum_gradients_of_bfloat16_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of keys, values and a table of distances, in 32 blocks of queries, are as exact as in one block.

    Only the part of each block is rounded to bfloat16, by as much as their sum is.
    """
    drawn, length = np.random.default_rng(0), 128
    arrays = [drawn.normal(size=(1, count, 1, 8)) for count in (length, length, length, 2 * length - 1, length)]
    *inputs, cotangent = (jnp.asarray(array, jnp.bfloat16) for array in arrays)

    def gradients(backend: Callable, dtype: Any) -> list[np.ndarray]:
        def attend(query: jax.Array, key: jax.Array, value: jax.Array, table: jax.Array) -> jax.Array:
            terms = (PositionalScores(None, table, length),)
            return backend(query, key, value, mask_terms=MaskTerms(), terms=terms, rate=0.0, dropout_key=None)

        back = jax.jit(lambda inputs, cotangent: jax.vjp(attend, *inputs)[1](cotangent))
        found = back([each.astype(dtype) for each in inputs], cotangent.astype(dtype))
        return [np.asarray(each, np.float32) for each in found]

    expected, whole = gradients(backends.dense, jnp.float32), gradients(backends.dense, jnp.bfloat16)
    if name == "dense":
        monkeypatch.setattr(backends, "SCORES_AT_ONCE", 4 * 4 * length)
        monkeypatch.setattr(backends, "LANES", 4)
        found = gradients(backends.dense, jnp.bfloat16)
    else:
        found = gradients(functools.partial(backends.blockwise, block=4), jnp.bfloat16)
    for true, once, blocks in zip(expected, whole, found, strict=True):
        assert np.linalg.norm(blocks - true) <= 1.5 * np.linalg.norm(once - true)


ROWS, QUERIES, KEYS, HEADS, SIZE = 2, 7, 11, 3, 4
MASK = np.arange(KEYS) < np.array([[KEYS], [6]])
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]])
OFFSET = KEYS - QUERIES
DISTANCE = np.arange(KEYS) - OFFSET - np.arange(QUERIES)[:, None]
SAME = (SEGMENTS[:, OFFSET:, None] == SEGMENTS[:, None]) & (SEGMENTS[:, None] > 0)
PREFIX = np.array([6, 2])

VISIBLE: dict[str, tuple[MaskTerms, Any]] = {
    "all": (MaskTerms(), np.ones((QUERIES, KEYS), bool)),
    "padding": (MaskTerms((KeyMask(MASK),)), MASK[:, None]),
    "segments": (MaskTerms((SameSegment(SEGMENTS[:, OFFSET:], SEGMENTS),)), SAME),
    "causal": (MaskTerms((Causal(),), OFFSET), DISTANCE <= 0),
    "causal, an offset for each row": (
        MaskTerms((Causal(),), np.array([OFFSET, 1])),
        np.stack([DISTANCE <= 0, DISTANCE + OFFSET - 1 <= 0]),
    ),
    "prefix": (MaskTerms((Causal(PREFIX),), OFFSET), (DISTANCE <= 0) | (np.arange(KEYS) < PREFIX[:, None, None])),
    "window": (MaskTerms((Window(3, 1),), OFFSET), (DISTANCE >= -3) & (DISTANCE <= 1)),
    "causal window in padded memory": (
        MaskTerms((KeyMask(MASK), Causal(), Window(4, 0)), OFFSET),
        MASK[:, None] & (DISTANCE <= 0) & (DISTANCE >= -4),
    ),
}
CAUSAL = MaskTerms((Causal(),))


TERMS: dict[str, tuple[BiasTerm, ...]] = {
    "no term": (),
    "array": (ScoreArray(np.random.default_rng(3).normal(size=(1, HEADS, QUERIES, KEYS)).astype(np.float32)),),
    "array for each key": (ScoreArray(np.random.default_rng(4).normal(size=(ROWS, 1, 1, KEYS)).astype(np.float32)),),
}

SCORES_ALONE = {"terms": (), "rate": 0.0, "dropout_key": None}


@functools.cache
def arrays() -> tuple[jax.Array, ...]:
    """Queries, keys and values."""
    random = np.random.default_rng(0)
    shapes = [(ROWS, length, HEADS, SIZE) for length in (QUERIES, KEYS, KEYS)]
    return tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)


def value_and_gradients(backend: Any, mask_terms: MaskTerms, terms: Any, *, rate: float = 0.0, key: Any = None) -> Any:
    """The context, and the gradients of a number that all of it goes into."""

    def loss(inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        context = backend(*inputs, mask_terms=mask_terms, terms=terms, rate=rate, dropout_key=key)
        return jnp.sum(jnp.sin(context)), context

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays())


def plain(query, key, value, *, mask_terms, terms, rate, dropout_key) -> jax.Array:
    """softmax(Q K^T + terms) V as its formula says, left to automatic differentiation."""
    scores, queries, keys = jnp.einsum("BTNH,BSNH->BNTS", query, key), query.shape[1], key.shape[1]
    hidden = mask_terms.bias(queries, keys)
    scores = scores if hidden is None else scores + hidden
    for term in terms:
        scores = scores + term.scores(query, key, mask_terms.query_positions(queries), jnp.arange(keys))
    # A chip's generator draws the mask with the queries last, unless there are terms or many keys for each query.
    few = keys < backends.MANY_KEYS * queries
    transposed = few and not terms and dropout_key is not None and jax.random.key_impl(dropout_key) == "rbg"
    weights = apply_dropout(jax.nn.softmax(scores), rate, dropout_key, axes=SCORES, transposed=transposed)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value)


# Dropout does not depend on what is seen.
WITH_DROPOUT = [("causal window in padded memory", 0.3, *way) for way in (("threefry2x32", 4), ("rbg", 4), ("rbg", 1))]


@pytest.mark.parametrize(
    ("kind", "rate", "generator", "many"), [*((kind, 0.0, "threefry2x32", 4) for kind in VISIBLE), *WITH_DROPOUT]
)
def test_the_backward_pass_is_that_of_the_formula(kind, rate, generator, many, monkeypatch) -> None:
    """Values and gradients, with and without dropout, rows without a visible key included; and what is hidden."""
    monkeypatch.setattr(backends, "MANY_KEYS", many)
    mask_terms, visible = VISIBLE[kind]
    hidden = np.zeros((1, 1, 1, 1)) if mask_terms == MaskTerms() else np.asarray(mask_terms.bias(QUERIES, KEYS))
    assert hidden.ndim == 4 and (hidden[hidden != 0] <= MASKED).all()
    np.testing.assert_array_equal(*np.broadcast_arrays(hidden == 0, visible[..., None, :, :]))
    draw = jax.random.key(3, impl=generator) if rate else None
    found, expected = (value_and_gradients(each, mask_terms, (), rate=rate, key=draw) for each in (dense, plain))
    # The contexts and the gradients; the number is a sum of hundreds that cancel each other. An element is a sum too,
    # whose rounding depends on the processor: what counts is the size of its terms, that of the largest element.
    for ours, theirs in zip((found[0][1], *found[1]), (expected[0][1], *expected[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())


@pytest.mark.parametrize(("kind", "queries"), [("no term", QUERIES), ("array", 2), ("array for each key", 2)])
def test_a_few_heads_at_a_time_give_what_all_of_them_give(kind, queries, monkeypatch) -> None:
    def found(backend: Any) -> Any:
        def loss(inputs: tuple[jax.Array, ...], terms: Any) -> tuple[jax.Array, jax.Array]:
            mask_terms, _ = VISIBLE["causal window in padded memory"]
            context = backend(*inputs, mask_terms=mask_terms, terms=terms, rate=0.0, dropout_key=None)
            return jnp.sum(jnp.sin(context)), context

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(arrays(), TERMS[kind])

    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(backends, "LANES", queries)
    program = str(jax.make_jaxpr(lambda *x: dense(*x, mask_terms=MaskTerms(), **SCORES_ALONE))(*arrays()))
    assert f"f32[{ROWS},1,{queries},{KEYS}]" in program and f"f32[{ROWS},{HEADS},{QUERIES},{KEYS}]" not in program
    chex.assert_trees_all_close(found(dense), found(plain), rtol=1e-6, atol=1e-6)


V5E, V3 = "TPU v5 lite", "TPU v3"


@pytest.mark.parametrize(
    ("kind", "size", "own_rows", "groups"),
    [(V5E, 2**26, 0, 1), (V5E, 2**26 - 2, 0, 4), (V3, 2**25, 0, 1), (V5E, 2**27 - 2, 1, 1), (V5E, 2**27 - 2, 4, 4)],
)
def test_scores_stay_where_the_vector_memory_is_large_enough(kind, size, own_rows, groups, monkeypatch) -> None:
    """All heads within the limit, else half of it beside what a loop copies; no loop on devices with little of it.

    A term with numbers for each row, of as many rows as `own_rows`, takes the room of scores.
    """
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", size)
    rows = jax.ShapeDtypeStruct((4, 512, 16, 8), jnp.bfloat16)  # 2^26 bytes of scores
    terms = (ScoreArray(jax.ShapeDtypeStruct((own_rows, 16, 512, 512), jnp.float32)),) if own_rows else ()

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, terms: Any) -> jax.Array:
        return dense(query, key, value, mask_terms=MaskTerms(), terms=terms, rate=0.0, dropout_key=None)

    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)):
        assert f"f32[4,{16 // groups},512,512]" in str(jax.make_jaxpr(attend)(rows, rows, rows, terms))


@pytest.mark.parametrize(("rows", "tokens", "block"), [(1, 4096, 4096), (1, 5000, 1792), (300, 512, 128)])
def test_a_block_has_so_many_queries_that_the_scores_of_a_head_stay(rows: int, tokens: int, block: int) -> None:
    inputs = [jax.ShapeDtypeStruct((rows, tokens, 4, 8), jnp.bfloat16)] * 3
    program = str(jax.make_jaxpr(lambda *x: dense(*x, mask_terms=CAUSAL, **SCORES_ALONE))(*inputs))
    assert f"f32[{rows},1,{block},{tokens}]" in program


def test_devices_that_share_the_heads_keep_theirs_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    inputs = tuple(jax.random.normal(jax.random.key(i), (8, 6, 4, 3)) for i in range(3))

    def attend(*inputs: jax.Array) -> jax.Array:
        return dense(*inputs, mask_terms=CAUSAL, **SCORES_ALONE)

    expected = attend(*inputs)
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 4 * 2 * 6 * 6)  # of one head of a device's two rows
    place = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    divided = jax.jit(sharding.with_mesh(attend, mesh), in_shardings=place, out_shardings=place)
    compiled = divided.lower(*inputs).compile()
    np.testing.assert_allclose(divided(*inputs), expected, rtol=1e-5, atol=1e-6)
    assert "while(" in compiled.as_text() and not re.search(r"all-|permute", compiled.as_text())


def test_nothing_of_the_size_of_the_scores_is_kept() -> None:
    """The arrays that the backward pass closes over: less than one such array, where the formula keeps several."""
    length = 64
    rows = jnp.ones((1, length, 2, 4))
    drop = {"terms": (), "rate": 0.1, "dropout_key": jax.random.key(0)}

    def kept(backend: Any) -> int:
        def closed() -> Any:
            return jax.vjp(lambda *x: backend(*x, mask_terms=CAUSAL, **drop), *[rows] * 3)

        return max(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(closed)))

    assert kept(dense) <= rows.size < 2 * length**2 <= kept(plain)


@pytest.mark.parametrize(
    ("kind", "term"),
    [
        *((kind, "no term") for kind in ("segments", "prefix", "causal, an offset for each row")),
        ("causal window in padded memory", "no term"),
        ("causal", "array"),
        ("causal", "array for each key"),
    ],
)
def test_blockwise_equals_dense(kind: str, term: str) -> None:
    """Values and gradients, blocks that divide neither length, rows without a visible key included."""
    both = (functools.partial(blockwise, block=3), dense)
    found, expected = (value_and_gradients(backend, VISIBLE[kind][0], TERMS[term]) for backend in both)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_blockwise_drops_probabilities() -> None:
    """As the dense form would with the same bits: those of the blocks put together."""
    rate, key, block = 0.3, jax.random.key(7), 4
    mask_terms = MaskTerms((Causal(),), OFFSET)
    found = value_and_gradients(functools.partial(blockwise, block=block), mask_terms, (), rate=rate, key=key)
    rows = []
    for row in range(-(-QUERIES // block)):
        keys = [jax.random.fold_in(jax.random.fold_in(key, row), column) for column in range(-(-KEYS // block))]
        ones = jnp.ones((ROWS, HEADS, block, block))
        rows.append(jnp.concatenate([apply_dropout(ones, rate, one) for one in keys], axis=-1))
    factors = jnp.concatenate(rows, axis=-2)[..., :QUERIES, :KEYS]

    def with_factors(query: jax.Array, key: jax.Array, value: jax.Array, mask_terms: MaskTerms, **_: Any) -> jax.Array:
        scores = jnp.einsum("BTNH,BSNH->BNTS", query, key) + mask_terms.bias(QUERIES, KEYS)
        return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(scores) * factors, value)

    chex.assert_trees_all_close(found, value_and_gradients(with_factors, mask_terms, ()), rtol=1e-5, atol=1e-5)
    assert 0.1 < float(jnp.mean(factors == 0)) < 0.5
