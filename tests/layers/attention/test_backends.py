"""Properties of cuDNN's backend of attention, and the dtypes of the others.

cuDNN's kernel needs a GPU, so JAX's own attention stands for it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms, SameSegment, Window
from plmjax.errors import UserError
from plmjax.layers.attention import backends
from plmjax.layers.attention.relative_shift import PositionalScores
from tests.products import equations

PADDED = KeyMask(jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]))
PACKED = SameSegment(*2 * (jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 3, 3]]),))
VISIBILITIES = {
    "all": MaskTerms(),
    "padding": MaskTerms((PADDED,)),
    "packed": MaskTerms((PACKED,)),
    "causal": MaskTerms((Causal(),)),
    "causal and packed": MaskTerms((Causal(), PACKED)),
    "prefix": MaskTerms((Causal(jnp.array([2, 4])),)),
    "window": MaskTerms((Window(1, 2),)),
    "memory": MaskTerms((Causal(),), query_offset=2),
    "later": MaskTerms((Causal(),), query_offset=3, key_offset=3),
}


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


@pytest.mark.parametrize("name", VISIBILITIES)
@pytest.mark.usefixtures("kernel")
def test_cudnn_sees_what_dense_attention_sees(name: str) -> None:
    mask_terms = VISIBILITIES[name]
    settings = {"mask_terms": mask_terms, "terms": (), "rate": 0.1, "dropout_key": None}
    both = jax.jit(lambda *rows: [backends.BACKENDS[name](*rows, **settings) for name in ("cudnn", "dense")])
    found, expected = both(*rows())
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize(("queries", "keys"), [(1, 6), (2, 6), (5, 5)])
@pytest.mark.usefixtures("kernel")
def test_rows_that_the_kernel_does_not_take_are_dense(queries: int, keys: int) -> None:
    mask_terms = MaskTerms((Causal(),), query_offset=keys - queries)
    settings = {"mask_terms": mask_terms, "terms": (), "rate": 0.0, "dropout_key": None}
    both = jax.jit(lambda *rows: [backends.BACKENDS[name](*rows, **settings) for name in ("cudnn", "dense")])
    found, expected = both(*rows(queries, keys))
    np.testing.assert_array_equal(found, expected)


def test_cudnn_has_neither_dropout_nor_terms_of_the_scores() -> None:
    with pytest.raises(UserError, match=r"without dropout for --training.attention cudnn, found a rate of 0\.1; set"):
        backends.cudnn(*rows(), mask_terms=MaskTerms(), terms=(), rate=0.1, dropout_key=jax.random.key(0))
    with pytest.raises(UserError, match=r"without terms of the scores.*found tuple; take --training.attention dense"):
        backends.cudnn(*rows(), mask_terms=MaskTerms(), terms=((),), rate=0.0, dropout_key=None)


SUMS = {
    "dense": {
        "BTNH,BSNH->BNTS": {"float32"},  # scores, and the gradient of probabilities
        "BNTS,BSNH->BTNH": {"float32", "bfloat16"},  # the context, and the gradient of queries
        "BTNH,BNTS->BSNH": {"bfloat16"},
    },
    "blockwise": {"BTNH,BSNH->BNTS": {"float32"}, "BNTS,BSNH->BNTH": {"float32"}},
}
"""Backend -> product -> dtypes of its sums."""


@pytest.mark.parametrize("name", SUMS)
def test_softmax_and_context_of_bfloat16_are_summed_in_float32(name: str) -> None:
    """The factors of all products are bfloat16, and gradients of the inputs are rounded."""

    def loss(*inputs: jax.Array) -> jax.Array:
        context = backends.BACKENDS[name](
            *inputs, mask_terms=MaskTerms((Causal(),)), terms=(), rate=0.0, dropout_key=None
        )
        return jnp.sum(jnp.sin(context))

    inputs, sums = [each.astype(jnp.bfloat16) for each in rows()], {}
    for place, equation in equations(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(*inputs).jaxpr):
        dtypes = {each.aval.dtype.name for each in equation.invars if each.aval.shape}
        if equation.primitive.name == "dot_general":
            assert dtypes == {"bfloat16"}
            for product in SUMS[name]:
                # The rest are products of the backward pass of a sum in float32, whose cotangents are rounded.
                if product in place and (name == "dense" or "vp(B" not in place):
                    sums.setdefault(product, set()).add(equation.outvars[0].aval.dtype.name)
        assert equation.primitive.name not in ("exp", "reduce_max", "div") or dtypes == {"float32"}
    assert sums == SUMS[name]


@pytest.mark.parametrize("name", ["dense", "blockwise"])
def test_blocks_sum_gradients_of_bfloat16_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of keys, values and a table of distances, in 32 blocks of queries: as exact as one block, but for the rounding of
    each block's own part, which is as large as that of the sum.
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
