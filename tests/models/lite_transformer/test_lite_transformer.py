"""Properties of the Lite Transformer alone: kernels, packed rows, its cache, its dropouts and its FLOPs."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers.convolutions import CONVOLUTIONS, LightweightConvolution
from plmjax.models.lite_transformer.branches import LongShortCache, equal_kernels, with_past_inputs
from plmjax.models.lite_transformer.lite_transformer import (
    LiteTransformerConfig,
    LiteTransformerForConditionalGeneration,
)
from tests.families.encoder_decoders import LITE
from tests.families.family import both_sides
from tests.products import step_flops
from tests.systems.modules import dropped, outputs, random_params

MODULE = LiteTransformerForConditionalGeneration(LITE)
BATCH = both_sides(LITE)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE)


@pytest.mark.nightly
def test_a_cache_gives_the_logits_of_whole_rows() -> None:
    """Prompts of unequal length are padded on the left, and the rows of the cache are exchanged."""
    read = jax.jit(lambda *inputs: MODULE.apply({"params": parameters()}, *inputs, method="encode"))
    write = jax.jit(lambda *inputs: MODULE.apply({"params": parameters()}, *inputs, method="decode"))
    expected = outputs(MODULE, parameters(), BATCH).logits
    ids = np.array([BATCH["decoder_input_ids"][0, :4], [9, 9, *BATCH["decoder_input_ids"][1, :2]]])
    mask = np.array([[1, 1, 1, 1], [0, 0, 1, 1]])
    source = read(BATCH["input_ids"][:2], BATCH["attention_mask"][:2])
    found = write(ids, source, mask, LITE.empty_cache(2, 7, Execution()))
    np.testing.assert_allclose(found.logits[:, -1], expected[np.arange(2), [3, 1]], rtol=1e-5, atol=1e-5)
    swapped = jnp.array([1, 0])
    source = read(BATCH["input_ids"][swapped], BATCH["attention_mask"][swapped])
    cache = found.cache.take_rows(swapped)
    for step in range(3):
        next_ids = np.array([[BATCH["decoder_input_ids"][1, 2 + step]], [BATCH["decoder_input_ids"][0, 4 + step]]])
        found = write(next_ids, source, np.ones((2, 1), np.int32), cache)
        assert jax.tree.map(jnp.shape, found.cache) == jax.tree.map(jnp.shape, cache)
        cache = found.cache
        np.testing.assert_allclose(found.logits[:, 0], expected[[1, 0], [2 + step, 4 + step]], rtol=1e-5, atol=1e-5)


def test_a_convolution_reads_zeros_at_padding() -> None:
    """Deviation: it reads the bias of the first projection there in the released code. Here padding may be cut off."""
    row = {name: x[1:2] for name, x in BATCH.items()}
    real = int(row["attention_mask"].sum())
    cut = row | {name: row[name][:, :real] for name in ("input_ids", "attention_mask")}
    assert real < row["input_ids"].shape[1]
    logits = [outputs(MODULE, parameters(), one).logits for one in (row, cut)]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5)

    convolution = CONVOLUTIONS["lightweight"](4, 2, 3, 0.0, jax.nn.initializers.lecun_normal())
    x, shown = jnp.ones((1, 5, 4)), jnp.asarray([[1, 1, 1, 0, 0]])

    def convolved(here: LightweightConvolution, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        inputs = here.inputs(x, mask)
        return here(inputs, jnp.pad(inputs, ((0, 0), (1, 1), (0, 0))), deterministic=True)

    run = functools.partial(convolution.apply, method=convolved)
    drawn = convolution.init(jax.random.key(0), x, None, method=convolved)
    drawn = jax.tree.map(lambda leaf: leaf + 0.5, nn.meta.unbox(drawn))
    ours, theirs = run(drawn, x, shown), run(drawn, x * shown[..., None], None)
    np.testing.assert_allclose(ours[:, :2], theirs[:, :2], rtol=1e-6)
    assert np.abs(ours[:, 2] - theirs[:, 2]).max() > 1e-2  # the last real token


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "convolution_dropout"])
def test_each_dropout_changes_both_sides(rate: str) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_kernel_sizes": (3,), "decoder_kernel_sizes": (4,)}
    found = LiteTransformerForConditionalGeneration(dataclasses.replace(LITE, **sizes, **{rate: 0.3}))
    params = random_params(found)
    kept, lost = outputs(found, params, BATCH), dropped(found, params, BATCH)
    for name in ("last_hidden_state", "encoder_last_hidden_state"):
        assert np.abs(getattr(kept, name) - getattr(lost, name)).max() > 1e-3, name


@pytest.mark.parametrize("convolution", ["dynamic", "lightweight"])
def test_flops_are_those_of_the_products(convolution: str) -> None:
    config = dataclasses.replace(LITE, convolution=convolution)
    tokens = {"input_ids": jnp.zeros((2, 11), jnp.int32), "decoder_input_ids": jnp.zeros((2, 7), jnp.int32)}
    found = step_flops(LiteTransformerForConditionalGeneration(config), lambda outputs: outputs.logits, **tokens)
    assert found == config.train_flops(2, 11, 7)


def test_the_released_settings() -> None:
    """The released commands; the convolution's inputs are gated for WMT, not for IWSLT."""
    for config, size in (
        (LiteTransformerConfig.wmt_200(), 200),
        (LiteTransformerConfig.wmt_408(), 408),
        (LiteTransformerConfig.wmt_496(), 496),
        (LiteTransformerConfig.iwslt(), 160),
    ):
        assert {config.d_model, config.encoder_ffn_dim, config.decoder_ffn_dim} == {size}
        assert config.encoder_kernel_sizes == config.decoder_kernel_sizes == (3, 7, 15, 31, 31, 31)
        assert config.convolution_heads == config.encoder_attention_heads == config.decoder_attention_heads == 4
        assert config.convolution == ("lightweight" if size == 160 else "dynamic")
    assert LiteTransformerConfig.wmt_496().attention_dropout == 0.08


@pytest.mark.parametrize(("size", "new"), [(3, 1), (5, 2), (3, 6), (1, 2)])
def test_a_convolution_reads_the_inputs_before_its_tokens_and_the_largest_kernel_is_kept(size: int, new: int) -> None:
    """The cache of the second of two layers keeps four inputs, whatever the size of its own kernel."""
    cache = LongShortCache(None, None, None, None, jnp.arange(16.0).reshape(2, 1, 4, 2))
    fresh = 100 + jnp.arange(2.0 * new).reshape(1, new, 2)
    both = np.concatenate([cache.inputs[1], fresh], axis=1)
    window, after = with_past_inputs(fresh, cache, 1, size)
    np.testing.assert_array_equal(window, both[:, 4 - (size - 1) :])
    np.testing.assert_array_equal(after.inputs[1], both[:, -4:])
    np.testing.assert_array_equal(after.inputs[0], cache.inputs[0])
    alone, none = with_past_inputs(fresh, None, 1, size)
    np.testing.assert_array_equal(alone, np.pad(fresh, ((0, 0), (size - 1, 0), (0, 0))))
    assert none is None


def test_layers_of_equal_kernels_that_follow_each_other_are_one_run() -> None:
    assert list(equal_kernels((3, 7, 7, 7, 3, 15))) == [(3, 0, 1), (7, 1, 3), (3, 4, 1), (15, 5, 1)]


def test_an_empty_cache_has_the_sizes_of_the_decoder() -> None:
    config = dataclasses.replace(LITE, decoder_layers=2, decoder_kernel_sizes=(7, 3))
    cache = config.empty_cache(5, 9, Execution(dtype=jnp.bfloat16))
    half = config.d_model // 2
    heads = config.decoder_attention_heads
    assert cache.inputs.shape == (2, 5, 6, half) and cache.inputs.dtype == jnp.bfloat16 and not cache.inputs.any()
    assert cache.keys.shape == (2, 5, heads, half // heads, 9) and heads != config.encoder_attention_heads
    rows = dataclasses.replace(cache, inputs=jnp.arange(5.0)[None, :, None, None] + cache.inputs)
    assert rows.take_rows(jnp.array([4, 4, 1])).inputs[1, :, 0, 0].tolist() == [4, 4, 1]


def test_every_layer_reads_the_keys_that_it_made_of_the_source_itself() -> None:
    """Layers of two runs, whose keys and values of all sources are made before the first word is written."""
    sizes = {"encoder_layers": 1, "encoder_kernel_sizes": (3,), "decoder_layers": 2, "decoder_kernel_sizes": (2, 3)}
    module = LiteTransformerForConditionalGeneration(dataclasses.replace(LITE, **sizes))
    params, ids, source_ids = random_params(module), BATCH["decoder_input_ids"], BATCH["input_ids"]

    @jax.jit
    def read(params: Any) -> Any:
        source = module.apply({"params": params}, source_ids, BATCH["attention_mask"], method="encode")
        written = module.apply({"params": params}, ids, source, method="decode")
        return written.logits, module.apply(
            {"params": params}, source_ids, BATCH["attention_mask"], decoder_input_ids=ids
        ).logits

    np.testing.assert_allclose(*read(params), rtol=1e-5, atol=1e-5)
