"""Properties of Longformer's language model alone: bands, a text that is written, cost and stages."""

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


def test_bands_change_nothing(params: Any, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are longer than a band, cut or not."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    module = LongformerDecoderForCausalLM(DECODER, Execution(attention="blockwise"))
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
