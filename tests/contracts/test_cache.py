"""Caches of models, conditions of visibility, and the order in which gradients of sharded parameters travel."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms, SameSegment, Window
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sharded_parameter import ShardedParameter, gather
from plmjax.contracts.system import Purpose
from plmjax.models.families.segments import KeyValueMemory, Memory
from plmjax.models.transformer_xl import TransformerXlConfig
from tests.generation.model import AWD_LSTM, NNLM, TRANSFORMER_XL, scaled_parameters
from tests.models.declared import CONFIGS

IDS = np.random.default_rng(0).integers(1, 29, (3, 5)).astype(np.int32)
MASK = (np.arange(5) >= np.array([[0], [2], [4]])).astype(np.int32)  # rows are filled up on the left


# tests/generation has caches of keys and values
@pytest.mark.parametrize("config", [AWD_LSTM, NNLM, TRANSFORMER_XL], ids=lambda config: config.system.name)
def test_taken_rows_are_those_of_a_cache_that_read_them_and_shapes_stay_the_same(config: ModelConfig) -> None:
    module, params = config.module(Purpose.CAUSAL_LM, Execution()), scaled_parameters(config)
    empty, order = config.empty_cache(len(IDS), 8, Execution()), np.array([2, 0, 0])

    @jax.jit
    def read(ids: np.ndarray, mask: np.ndarray, cache: Cache) -> Cache:
        return module.apply({"params": params}, ids, attention_mask=mask, cache=cache).cache

    first = read(IDS, MASK, empty)
    expected = read(IDS[order], MASK[order], empty)
    chex.assert_trees_all_close(first.take_rows(jnp.asarray(order)), expected, rtol=1e-5, atol=1e-5)
    after = jax.eval_shape(read, IDS[:, :1], MASK[:, :1], first)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), cache) for cache in (empty, first, after)]
    assert shapes[0] == shapes[1] == shapes[2]


SIDES = {
    "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "d_model": 24, "vocab_size": 9,
}  # fmt: skip
KERNELS = {"encoder_kernel_sizes": (3, 5, 7), "decoder_kernel_sizes": (3, 6)}


@pytest.mark.parametrize(
    ("name", "fields", "keys"),
    [
        ("Bart", SIDES, (2, 3, 4, 6, 8)),
        ("Transformer", SIDES, (2, 3, 4, 6, 8)),
        (
            "LiteTransformer",
            SIDES | {"encoder_kernel_sizes": (3, 5, 7), "decoder_kernel_sizes": (3, 6)},
            (2, 3, 4, 3, 8),
        ),
        ("T5", {"d_model": 24, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 5}, (2, 3, 4, 5, 8)),
        ("Gpt", {"n_embd": 24, "n_head": 4, "n_layer": 2}, (2, 3, 4, 6, 8)),
    ],
)
def test_a_cache_has_the_layers_and_heads_of_the_decoder_and_the_dtype_of_the_products(
    name: str, fields: dict[str, Any], keys: tuple[int, ...]
) -> None:
    cache = jax.eval_shape(lambda: CONFIGS[name](**fields).empty_cache(3, 8, Execution(dtype=jnp.bfloat16)))
    assert [(one.shape, one.dtype) for one in (cache.keys, cache.values)] == [(keys, jnp.bfloat16)] * 2
    assert cache.key_mask.shape == (3, 8)
    if name == "LiteTransformer":
        assert (cache.inputs.shape, cache.inputs.dtype) == ((2, 3, 5, 12), jnp.bfloat16)


def test_a_memory_of_zeros_that_are_normalised_keeps_what_the_layers_read() -> None:
    """Keys of zeros are zeros only if no norm with a bias stands before the projection."""
    config = TransformerXlConfig.tiny(mem_len=5, pre_lnorm=True, initial_memory="zeros")
    kept = jax.eval_shape(lambda: config.empty_cache(3, 8, Execution()))
    assert isinstance(kept, Memory) and kept.hidden.shape == (2, 3, 5, 128)
    for changes in ({"pre_lnorm": False}, {"initial_memory": "empty"}):
        other = dataclasses.replace(config, **changes).empty_cache(3, 8, Execution(dtype=jnp.bfloat16))
        assert isinstance(other, KeyValueMemory) and other.key_values.keys.shape == (2, 3, 2, 64, 5)
        assert other.key_values.keys.dtype == jnp.bfloat16
        assert (other.documents == (changes.get("initial_memory") != "empty")).all()


RANKS = np.arange(20).reshape(2, 10) % 3


@pytest.mark.parametrize(
    ("conditions", "reach"),
    [
        ((), (None, None)),
        ((Causal(), KeyMask(RANKS)), (None, 0)),
        ((Causal(np.array([1, 2])), Window(3, 2)), (3, 2)),
        ((Window(3, 2), Causal(), Window(5, 1)), (3, 0)),
        ((Window(np.int32(3), 2), SameSegment(RANKS, RANKS)), (None, 2)),
    ],
)
def test_the_narrowest_condition_decides_how_far_a_query_sees(conditions: Any, reach: Any) -> None:
    assert MaskTerms(conditions).reach == reach


def test_queries_of_another_row_see_the_keys_of_their_sequence_that_are_no_padding() -> None:
    """More queries than keys, and a mask that hides a key of their sequence."""
    keys, queries = np.array([[1, 1, 2]]), np.array([[2, 1, 1, 0]])
    seen = lambda mask_terms, count: (np.asarray(mask_terms.bias(count, 3))[0, 0] == 0).astype(int).tolist()  # noqa: E731
    hidden = MaskTerms.of_rows(np.array([[0, 1, 1]]), keys, queries)
    assert seen(hidden, 4) == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert seen(MaskTerms.of_rows(None, keys, queries), 4) == [[0, 0, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert seen(MaskTerms.of_rows(None, keys), 3) == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert MaskTerms.of_rows(None, None, queries).bias(4, 3) is None


def test_gradients_of_smaller_parameters_begin_when_the_blocks_of_larger_ones_are_summed() -> None:
    """Two pieces are at least of the mean size: their blocks wait for each other, and two gradients for them."""
    sizes = [2, 8, 3, 7]

    def total(values: list[jax.Array]) -> jax.Array:
        finish = lambda blocks, shape: jnp.concatenate([blocks, blocks + 1])  # noqa: E731
        params = gather([ShardedParameter(value, lambda piece: 2 * piece, finish) for value in values])
        assert [param.shape for param in params] == [(2 * size,) for size in sizes]
        return sum(jnp.sum(jnp.sin(param)) for param in params)

    equations = jax.make_jaxpr(jax.grad(total))([jnp.ones(size) for size in sizes]).jaxpr.eqns
    (barrier,) = [one for one in equations if one.primitive.name == "optimization_barrier"]
    assert [each.aval.shape for each in barrier.invars] == [(4,), (8,), (6,), (7,)]
