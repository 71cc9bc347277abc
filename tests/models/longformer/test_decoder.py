"""Properties of Longformer's language model alone: bands, a text that is written, cost, stages and mistakes."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers.attention import bands
from plmjax.models.longformer.decoder import LongformerDecoderConfig, LongformerDecoderForCausalLM
from plmjax.models.longformer.decoder_attention import Documents, LongformerDecoderAttention
from plmjax.runs.weight_mappings.longformer import WiderWindows
from tests.families.long_texts import DECODER
from tests.products import flops
from tests.systems.modules import outputs, random_params

IDS = np.random.default_rng(0).integers(0, DECODER.vocab_size, (2, 29), np.int32)


@pytest.fixture(scope="module")
def params() -> Any:
    return random_params(LongformerDecoderForCausalLM(DECODER))


@pytest.fixture(scope="module")
def whole(params: Any) -> np.ndarray:
    """The logits of whole rows without bands, which tests/systems compares with masks."""
    return np.asarray(outputs(LongformerDecoderForCausalLM(DECODER), params, {"input_ids": IDS}).logits)


@pytest.mark.parametrize("backend", [pytest.param("dense", marks=pytest.mark.nightly), "blockwise"])
def test_bands_change_nothing(backend: str, params: Any, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are longer than a band, cut or not."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    module = LongformerDecoderForCausalLM(DECODER, Execution(attention=backend))
    cut = jax.jit(lambda params: module.apply({"params": params}, IDS))  # traced anew, with this size of a band
    np.testing.assert_allclose(cut(params).logits, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("capacity", "size"), [(29, 12), pytest.param(7, 7, marks=pytest.mark.nightly)])
def test_a_memory_gives_what_the_whole_text_gives(capacity: int, size: int, params: Any, whole: np.ndarray) -> None:
    """After a prompt, token by token; it keeps as many tokens as a head can see, at most the capacity."""
    module, cache = LongformerDecoderForCausalLM(DECODER), DECODER.empty_cache(2, capacity, Execution())
    assert cache.key_values.keys.shape == (2, 2, 3, 6, size)
    step = jax.jit(lambda ids, cache: module.apply({"params": params}, ids, cache=cache))
    first = step(IDS[:, :5], cache)
    found, cache = [first.logits], first.cache
    for place in range(5, capacity):
        output = step(IDS[:, place : place + 1], cache)
        cache = output.cache
        found.append(output.logits)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), whole[:, :capacity], rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_time_and_memory_grow_as_the_rows() -> None:
    """Products counted in a step, and the memory of the compiled step, twice as long."""
    config = dataclasses.replace(DECODER, attention_window=(50,), attention_dilation=(2,))
    module = LongformerDecoderForCausalLM(config, Execution(remat="full", unroll=1))
    shapes = nn.meta.unbox(jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))))

    def cost(length: int) -> tuple[float, int]:
        def loss(params: Any, ids: jax.Array) -> jax.Array:
            return jnp.sum(module.apply(params, ids).last_hidden_state)

        ids, gradient = jax.ShapeDtypeStruct((1, length), jnp.int32), jax.grad(loss)
        memory = jax.jit(gradient).lower(shapes, ids).compile().memory_analysis()
        return flops(gradient, shapes, ids), memory.temp_size_in_bytes

    shorter, longer = cost(1024), cost(2048)
    assert longer[0] <= 2.1 * shorter[0]
    assert longer[1] <= 2.1 * shorter[1]


def test_a_token_of_a_long_row_has_as_many_keys_as_its_window() -> None:
    small, wider = LongformerDecoderConfig.small(), LongformerDecoderConfig.small().widen(2)
    added = sum(small.attention_window) * 512 * (512 + 3 * 16384)
    assert wider.train_flops(1, 16384, 0) - small.train_flops(1, 16384, 0) == pytest.approx(6.0 * added)


def test_windows_are_those_of_the_paper() -> None:
    """32 to 512 in the first stage, 230 on average; 512 to 8,192 in the fifth, in which a head reaches 32,768 back."""
    small = LongformerDecoderConfig.small()
    last = small.widen(16)
    assert small.attention_window[0] == 32 and small.attention_window[-1] == last.attention_window[0] == 512
    assert np.mean(small.attention_window) == pytest.approx(230, abs=1)
    assert last.attention_window[-1] == 8192 and last.reach == 32_768
    assert WiderWindows(factor=16).model(small) == last


RUNS = dataclasses.replace(
    DECODER, n_layer=5, attention_window=(4, 4, 7, 7, 4), attention_dilation=(1, 1, 3, 3, 3), dilated_heads=1
)


def test_layers_that_follow_each_other_and_are_alike_are_one_stack() -> None:
    """Those that come back later are another one; each layer is a part of its stack."""
    assert RUNS.runs == [((4, 1), slice(0, 2)), ((7, 3), slice(2, 4)), ((4, 3), slice(4, 5))]
    groups = [(group.prefixes[0], group.index) for group in RUNS.parameter_groups[1:]]
    assert groups[:5] == [
        (f"longformer_decoder/layers_{n}", index) for n, index in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]


def test_a_dilated_head_has_the_keys_of_a_row_of_its_own() -> None:
    """Every third of 13 tokens has 5 keys at most; the others see 7 before them and themselves."""
    config = dataclasses.replace(RUNS, n_layer=1, attention_window=(7,), attention_dilation=(3,))
    size, head = config.d_model, config.d_model // config.n_head
    layer = 2 * 13 * (4 * size**2 + 2 * size * config.d_inner)
    layer += sum(
        keys * size * n * head + 2 * 13 * (3 * keys + 2) * n * head for keys, n in ((8, config.n_head - 1), (5, 1))
    )
    assert config.train_flops(2, 13, 11) == 6 * (layer + 2 * 11 * size * config.vocab_size)


def test_a_layer_behind_a_memory_sees_what_it_sees_in_the_whole_row() -> None:
    """Every third of the tokens for one head of three; a row of 11, the last tokens of which are read by themselves.

    The memory is as long as the farthest head sees, and one place of it is empty.
    """
    attention = LongformerDecoderAttention(
        6, 3, 0.0, nn.initializers.normal(0.7), use_bias=False, window=2, dilation=3, dilated_heads=1
    )
    random = np.random.default_rng(0)
    x, table = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((1, 11, 6), (1, 11, 6)))
    biases = tuple(jnp.asarray(random.normal(size=(3, 2)), jnp.float32) for _ in range(2))
    documents = jnp.asarray([[0, *[1] * 10]])

    @jax.jit
    def read() -> Any:
        whole = Documents(documents, documents)
        (y, seen), params = attention.init_with_output(jax.random.key(0), x, whole, table, biases=biases, past=None)
        found = [(y, seen)]
        for queries in (1, 4):
            first = 11 - queries - 6
            past = jax.tree.map(lambda each: jnp.einsum("BSNH->BNHS", each)[..., first : 11 - queries], seen)  # noqa: B023
            behind = Documents(documents[:, -queries:], documents[:, first:])
            found.append(
                attention.apply(nn.meta.unbox(params), x[:, -queries:], behind, table, biases=biases, past=past)
            )
        return found

    (expected, seen), *both = read()
    for queries, (found, after) in zip((1, 4), both, strict=True):
        np.testing.assert_allclose(found, expected[:, -queries:], rtol=1e-5, atol=1e-5)
        first = 11 - queries - 6
        np.testing.assert_allclose(after.values, seen.values[:, first:], rtol=1e-5, atol=1e-6)
