"""Attention: both backends for every kind of visibility, cached decoding, cross-attention, and very long rows."""

import functools
import re
from typing import Any

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.contracts.bias_terms import BiasTerm, ScoreArray
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MASKED, Causal, KeyMask, MaskTerms, SameSegment, Window
from plmjax.contracts.system import Purpose
from plmjax.layers.attention import backends
from plmjax.layers.attention.backends import SCORES, blockwise, dense
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.dropout import apply_dropout
from plmjax.models.bert import BertConfig
from plmjax.parallel import sharding
from tests.systems.modules import drawn

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


@flax.struct.dataclass
class Cosines(BiasTerm):
    """A term of the positions alone, without arrays."""

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        return jnp.cos(key_positions - query_positions[..., None].astype(jnp.float32))[..., None, :, :]


TERMS: dict[str, tuple[BiasTerm, ...]] = {
    "no term": (),
    "array": (ScoreArray(np.random.default_rng(3).normal(size=(1, HEADS, QUERIES, KEYS)).astype(np.float32)),),
    "array for each key": (ScoreArray(np.random.default_rng(4).normal(size=(ROWS, 1, 1, KEYS)).astype(np.float32)),),
    "positions": (Cosines(),),
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


@pytest.mark.parametrize("kind", VISIBLE)
def test_conditions_hide_what_they_say(kind: str) -> None:
    mask_terms, visible = VISIBLE[kind]
    found = mask_terms.bias(QUERIES, KEYS)
    found = np.zeros(()) if found is None else np.asarray(found)
    chex.assert_rank(found, {0, 4})
    shape = (ROWS, 1, QUERIES, KEYS)
    expected = visible[:, None] if visible.ndim == 3 else visible[None, None]
    np.testing.assert_array_equal(np.broadcast_to(found == 0, shape), np.broadcast_to(expected, shape))
    assert (found[found != 0] <= MASKED).all()


def plain(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask_terms: MaskTerms,
    terms: Any,
    rate: float,
    dropout_key: Any,
) -> jax.Array:
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


WITHOUT_DROPOUT, *WITH_DROPOUT = (0.0, "threefry2x32", 4), (0.3, "threefry2x32", 4), (0.3, "rbg", 4), (0.3, "rbg", 1)
# Dropout does not depend on what is seen: pytest -m nightly tests/layers/attention
BACKWARD = [pytest.param(kind, *WITHOUT_DROPOUT) for kind in VISIBLE] + [
    pytest.param(kind, *way, marks=() if kind == "causal window in padded memory" else pytest.mark.nightly)
    for way in WITH_DROPOUT
    for kind in VISIBLE
]


@pytest.mark.parametrize(("kind", "rate", "generator", "many"), BACKWARD)
def test_the_backward_pass_is_that_of_the_formula(
    kind: str, rate: float, generator: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, with and without dropout, rows without a visible key included."""
    monkeypatch.setattr(backends, "MANY_KEYS", many)
    draw = jax.random.key(3, impl=generator) if rate else None
    found = value_and_gradients(dense, VISIBLE[kind][0], (), rate=rate, key=draw)
    expected = value_and_gradients(plain, VISIBLE[kind][0], (), rate=rate, key=draw)
    # The contexts and the gradients; the number is a sum of hundreds that cancel each other. An element is a sum too,
    # whose rounding depends on the processor: what counts is the size of its terms, that of the largest element.
    for ours, theirs in zip((found[0][1], *found[1]), (expected[0][1], *expected[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("kind", "generator"),
    [("array", "rbg"), pytest.param("array", "threefry2x32", marks=pytest.mark.nightly), ("array for each key", "rbg")],
)
def test_an_array_learns_as_in_the_formula(kind: str, generator: str) -> None:
    inputs = arrays()

    def gradient(backend: Any) -> Any:
        def loss(terms: tuple[BiasTerm, ...]) -> jax.Array:
            draw = {"rate": 0.3, "dropout_key": jax.random.key(3, impl=generator)}
            return jnp.sum(jnp.sin(backend(*inputs, mask_terms=CAUSAL, terms=terms, **draw)))

        return jax.jit(jax.grad(loss))(TERMS[kind])[0].values

    chex.assert_trees_all_close(gradient(dense), gradient(plain), rtol=1e-6, atol=1e-6)
    assert np.abs(gradient(dense)).max() > 0.01


# Terms are cut into heads and into queries at once: half a second each for what is cut into heads alone, too.
FEW = [
    pytest.param(kind, queries, id=f"{kind}-{name}", marks=() if by_day else pytest.mark.nightly)
    for kind in ("no term", "array", "array for each key")
    for queries, name, by_day in (
        (QUERIES, "all queries", kind == "no term"), (2, "blocks of two queries", kind != "no term")
    )
]  # fmt: skip


@pytest.mark.parametrize(("kind", "queries"), FEW)
def test_a_few_heads_at_a_time_give_what_all_of_them_give(
    kind: str, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.nightly
@pytest.mark.parametrize("queries", [8, 4], ids=["all queries", "blocks of four queries"])
def test_groups_of_heads_draw_masks_of_their_own_and_threefry_has_no_groups(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2, 8, 3, 4)
    same = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (2, 8, 1, 4)), shape)

    def drop(value: jax.Array, generator: str) -> jax.Array:
        return dense(
            same, same, value, mask_terms=MaskTerms(), terms=(), rate=0.5, dropout_key=jax.random.key(1, impl=generator)
        )

    whole = drop(same, "threefry2x32")
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(backends, "LANES", queries)
    chex.assert_trees_all_equal(drop(same, "threefry2x32"), whole)
    first, second, _ = np.moveaxis(np.asarray(drop(same, "rbg")), 2, 0)
    assert (np.abs(first - second) > 1e-3).any()  # the heads are equal, their masks are not
    # The context is linear in the values: equal only if the backward pass draws the masks of the forward pass.
    loss, gradient = jax.value_and_grad(lambda value: jnp.sum(jnp.sin(same) * drop(value, "rbg")))(same)
    np.testing.assert_allclose(jnp.vdot(gradient, same), loss, rtol=1e-5)


V5E = "TPU v5 lite"


@pytest.mark.parametrize(
    ("kind", "size", "groups"),
    [(V5E, 2**26, 1), (V5E, 2**26 - 2, 4), (V5E, 2**25, 4), ("TPU v3", 2**25, 1), ("TPU v2", 2**25, 1)],
)
def test_scores_stay_where_the_vector_memory_is_large_enough(
    kind: str, size: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All heads within the limit, else half of it beside what a loop copies; no loop on devices with little of it."""
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", size)
    rows = jax.ShapeDtypeStruct((4, 512, 16, 8), jnp.bfloat16)  # 2^26 bytes of scores
    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        program = str(jax.make_jaxpr(lambda *x: dense(*x, mask_terms=MaskTerms(), **SCORES_ALONE))(*[rows] * 3))
    assert f"f32[4,{16 // groups},512,512]" in program


@pytest.mark.parametrize(("own_rows", "groups"), [(1, 1), (4, 4)], ids=["for all rows", "for each row"])
def test_a_term_for_each_row_takes_the_room_of_scores(own_rows: int, groups: int, monkeypatch) -> None:
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2**27 - 2)  # the scores and the term have 2^27 bytes
    rows = jax.ShapeDtypeStruct((4, 512, 16, 8), jnp.bfloat16)
    term = ScoreArray(jax.ShapeDtypeStruct((own_rows, 16, 512, 512), jnp.float32))

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, term: ScoreArray) -> jax.Array:
        return dense(query, key, value, mask_terms=MaskTerms(), terms=(term,), rate=0.0, dropout_key=None)

    assert f"f32[4,{16 // groups},512,512]" in str(jax.make_jaxpr(attend)(rows, rows, rows, term))


@pytest.mark.parametrize(
    ("rows", "tokens", "block"), [(1, 4096, 4096), (1, 8192, 1024), (1, 5000, 1792), (2, 8192, 512), (300, 512, 128)]
)
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
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2 * 4 * 2 * 6 * 6)  # of both heads of its two rows
    jax.clear_caches()
    assert (
        "stablehlo.while" not in jax.jit(sharding.with_mesh(attend, mesh), in_shardings=place).lower(*inputs).as_text()
    )


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


def test_several_problems_at_once() -> None:
    def attended(query: jax.Array) -> jax.Array:
        return dense(query, *arrays()[1:], mask_terms=MaskTerms((Causal(),), OFFSET), **SCORES_ALONE)

    query = arrays()[0]
    gradient = jax.grad(lambda query: jnp.sum(jnp.sin(attended(query))))
    both = jax.jit(jax.vmap(gradient))(np.stack([query, 2 * query]))
    one = jax.jit(gradient)(2 * query)
    np.testing.assert_allclose(both[1], one, rtol=1e-5, atol=1e-6)


OF_ALL = ("causal window in padded memory", "segments", "prefix", "causal, an offset for each row")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OF_ALL else pytest.mark.nightly) for kind in VISIBLE]
)
def test_blockwise_equals_dense(kind: str) -> None:
    """Values and gradients, blocks that divide neither length, rows without a visible key included."""
    mask_terms, _ = VISIBLE[kind]
    found = value_and_gradients(functools.partial(blockwise, block=3), mask_terms, ())
    chex.assert_trees_all_close(found, value_and_gradients(dense, mask_terms, ()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in TERMS if kind != "no term"])
def test_blockwise_equals_dense_with_a_term(kind: str) -> None:
    mask_terms, _ = VISIBLE["causal, an offset for each row" if kind == "positions" else "causal"]
    found = value_and_gradients(functools.partial(blockwise, block=4), mask_terms, TERMS[kind])
    expected = value_and_gradients(dense, mask_terms, TERMS[kind])
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
    without = value_and_gradients(dense, mask_terms, ())
    assert np.abs(expected[0][1] - without[0][1]).max() > 0.01


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


@pytest.mark.nightly
def test_rows_of_65536_tokens_need_no_square_array() -> None:
    """The gradient of a small BERT on one packed row: less memory than a [T T] array of bits, and no such array."""
    length = 65536
    config = BertConfig(53, 16, 2, 2, 16, max_position_embeddings=length)
    module = config.module(Purpose.MASKED_TOKENS, Execution(attention="blockwise", remat="full"))
    shapes = {
        "input_ids": jax.ShapeDtypeStruct((1, length), jnp.int32),
        "segment_ids": jax.ShapeDtypeStruct((1, length), jnp.int32),
        "masked_positions": jax.ShapeDtypeStruct((1, 8), jnp.int32),
    }
    params = jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))))

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        outputs = module.apply(params, **batch, deterministic=False, rngs={"dropout": key})
        return jnp.sum(jnp.square(outputs.logits))

    compiled = jax.jit(jax.grad(loss)).lower(params, shapes, jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < length**2 // 8
    assert f"{length},{length}" not in compiled.as_text()


# ------------------------------------------------------------------------------------------------------- the layer

FEATURES, INIT = 6, nn.initializers.normal(0.4)


def layer(**settings: Any) -> tuple[MultiHeadAttention, Any, jax.Array]:
    """A module, its parameters, and token vectors [2 7 6]."""
    module = MultiHeadAttention(FEATURES, 2, 0.0, INIT, **settings)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, QUERIES, FEATURES)), jnp.float32)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, x, deterministic=True))
    return module, drawn(shapes, deviation=0.4), x


@pytest.mark.parametrize("attention", [pytest.param("dense", marks=pytest.mark.nightly), "blockwise"])
def test_decoding_token_by_token_equals_one_causal_pass(attention: str) -> None:
    module, params, x = layer(execution=Execution(attention=attention))
    expected = jax.jit(lambda: module.apply(params, x, x, CAUSAL, deterministic=True))()

    def step(module: MultiHeadAttention, token: jax.Array, cache: KeyValues, position: jax.Array) -> Any:
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=position, axis=1)
        cache = jax.tree.map(write, cache, module.key_values(token))
        mask_terms = MaskTerms((Causal(),), position)
        return module.attend(token, cache, mask_terms, deterministic=True), cache

    decode = jax.jit(functools.partial(module.apply, method=step))
    cache, found = KeyValues(*[jnp.zeros((ROWS, QUERIES + 2, 2, FEATURES // 2))] * 2), []
    for position in range(QUERIES):
        token, cache = decode(params, x[:, position : position + 1], cache, position)
        found.append(token)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected, rtol=1e-5, atol=1e-5)


def test_head_size_scale_and_biases_are_free_and_keys_may_come_from_elsewhere() -> None:
    """T5's: no scale, no bias, heads of another size than D / N; cross-attention to a source of other features."""
    module = MultiHeadAttention(FEATURES, 2, 0.0, INIT, head_size=5, scale=1.0, use_bias=False)
    _, _, x = layer()
    source = jnp.asarray(np.random.default_rng(2).normal(size=(ROWS, KEYS, 9)), jnp.float32)
    params = drawn(jax.eval_shape(lambda: module.init(jax.random.key(0), x, source, deterministic=True)))
    kernels = {name: part["kernel"] for name, part in params["params"].items()}
    shapes = {"query": (6, 2, 5), "key": (9, 2, 5), "value": (9, 2, 5), "output": (2, 5, 6)}
    assert {name: kernel.shape for name, kernel in kernels.items()} == shapes
    assert all(set(part) == {"kernel"} for part in params["params"].values())
    query, key, value = (
        jnp.einsum("BTD,DNH->BTNH", tokens, kernels[name])
        for name, tokens in (("query", x), ("key", source), ("value", source))
    )
    scores = jnp.where(MASK[:, None, None], jnp.einsum("BTNH,BSNH->BNTS", query, key), -jnp.inf)
    probabilities = jax.nn.softmax(scores)
    expected = jnp.einsum("BNTS,BSNH,NHD->BTD", probabilities, value, kernels["output"])
    found = jax.jit(lambda: module.apply(params, x, source, MaskTerms.of_rows(MASK, None), deterministic=True))()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
