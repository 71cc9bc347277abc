"""Properties of Longformer's language model alone: bands, a text that is written, cost, stages and mistakes."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.finetuning.starts.longformer import WiderWindows
from plmjax.layers.attention import bands
from plmjax.models.longformer.decoder import LongformerDecoderConfig, LongformerDecoderForCausalLM
from plmjax.models.longformer.longformer import LongformerConfig
from tests.families.long_texts import DECODER
from tests.products import flops, step_flops
from tests.systems.modules import outputs, random_params

IDS = np.random.default_rng(0).integers(0, DECODER.vocab_size, (2, 29), np.int32)


@pytest.fixture(scope="module")
def params() -> Any:
    return random_params(LongformerDecoderForCausalLM(DECODER))


@pytest.fixture(scope="module")
def whole(params: Any) -> np.ndarray:
    """The logits of whole rows without bands, which tests/systems compares with masks."""
    return np.asarray(outputs(LongformerDecoderForCausalLM(DECODER), params, {"input_ids": IDS}).logits)


@pytest.mark.parametrize("backend", ["dense", "blockwise"])
def test_bands_change_nothing(backend: str, params: Any, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are longer than a band, cut or not."""
    monkeypatch.setattr(bands, "LEAST", 4)
    module = LongformerDecoderForCausalLM(DECODER, Execution(attention=backend))
    cut = jax.jit(lambda params: module.apply({"params": params}, IDS))  # traced anew, with this size of a band
    np.testing.assert_allclose(cut(params).logits, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("capacity", "size"), [(29, 12), (7, 7)])
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


def test_train_flops_are_the_products_of_the_program() -> None:
    """In rows no longer than the windows; in longer ones each token has w + 1 keys, where bands have more."""
    config = dataclasses.replace(DECODER, attention_dilation=(1,))
    module, inputs = LongformerDecoderForCausalLM(config), {"input_ids": jnp.zeros((2, 5), jnp.int32)}
    assert step_flops(module, lambda outputs: outputs.logits, **inputs) == pytest.approx(config.train_flops(2, 5, 5))
    small, wider = LongformerDecoderConfig.small(), LongformerDecoderConfig.small().widened(2)
    added = sum(small.attention_window) * 512 * (512 + 3 * 16384)
    assert wider.train_flops(1, 16384, 0) - small.train_flops(1, 16384, 0) == pytest.approx(6.0 * added)


def test_windows_are_those_of_the_paper() -> None:
    """32 to 512 in the first stage, 230 on average; 512 to 8,192 in the fifth, in which a head reaches 32,768 back."""
    small = LongformerDecoderConfig.small()
    last = small.widened(16)
    assert small.attention_window[0] == 32 and small.attention_window[-1] == last.attention_window[0] == 512
    assert np.mean(small.attention_window) == pytest.approx(230, abs=1)
    assert last.attention_window[-1] == 8192 and last.reach == 32_768
    assert WiderWindows(factor=16).model(small) == last


def test_another_stage_needs_a_language_model_of_longformer() -> None:
    with pytest.raises(
        UserError, match=r"language model of Longformer, .* found LongformerConfig; name the run of the"
    ):
        WiderWindows().model(LongformerConfig.tiny())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_window": (4, 0)}, "--model.attention_window of numbers from 1, .* 2 layers, found 4 0; change it"),
        ({"attention_window": (4, 4, 4)}, "--model.attention_window of numbers"),
        ({"attention_dilation": (0,)}, "--model.attention_dilation of numbers from 1, one for all"),
        ({"attention_dilation": ()}, "2 layers, found none"),
        ({"dilated_heads": 4}, "--model.dilated_heads from 0"),
        ({"n_head": 5}, "18 and 5 heads"),
        ({"layer_norm_epsilon": 0.0}, "above 0"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(DECODER, **fields)
