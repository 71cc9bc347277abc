"""Properties of LED alone: the global token, the reach of its windows, lengths of both sides, cost and mistakes."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.interop.led import read_config, write_config
from plmjax.models.bart.bart import BartConfig
from plmjax.models.longformer.encoder_decoder import LedConfig, LedForConditionalGeneration
from tests.families.family import both_sides
from tests.families.long_texts import LED
from tests.systems.modules import outputs, random_params


@pytest.mark.nightly
def test_the_first_token_is_global() -> None:
    """By default, while a target is read at once and while one is written."""
    module, batch = LedForConditionalGeneration(LED), both_sides(LED)
    params = random_params(module)
    first = np.zeros_like(batch["input_ids"])
    first[:, 0] = 1
    found = outputs(module, params, batch).logits
    np.testing.assert_allclose(
        found, outputs(module, params, batch | {"global_attention_mask": first}).logits, rtol=1e-5, atol=1e-5
    )
    none = outputs(module, params, batch | {"global_attention_mask": 0 * first}).logits
    assert np.abs(found - none).max() > 1e-3

    encode, decode = (jax.jit(functools.partial(module.apply, method=name)) for name in ("encode", "decode"))

    def step(place: int, cache: Any, source: Any) -> Any:
        ids, mask = (batch[f"decoder_{name}"][:, place : place + 1] for name in ("input_ids", "attention_mask"))
        return decode({"params": params}, ids, source, mask, cache)

    source = encode({"params": params}, batch["input_ids"], batch["attention_mask"])
    cache, rows = LED.empty_cache(3, 13, Execution()), []
    for place in range(3):
        output = step(place, cache, source)
        cache = output.cache
        rows.append(output.logits)
    np.testing.assert_allclose(jnp.concatenate(rows, axis=1)[:2], found[:2, :3], rtol=1e-5, atol=1e-5)


def test_a_token_of_a_long_source_has_two_keys_more_than_its_window() -> None:
    base, size = LedConfig.base(), 768
    token = 6 * (6 * size**2 + 2 * size * 3072 + 2 * 1026 * size + 2 * size) + 6 * 2 * size**2
    more = base.layers_products(16384, 1) - base.layers_products(8192, 1)
    assert more == 8192 * (token + 6 * 2 * size)  # and the target's attention to the source


@pytest.mark.nightly
def test_a_target_has_a_length_of_its_own() -> None:
    module, ids = LedForConditionalGeneration(LED), jnp.zeros((1, 20), jnp.int32)
    assert (LED.longest, LED.longest_target) == (24, 19)
    params = random_params(module)
    long = jnp.zeros((1, 25), jnp.int32)
    with pytest.raises(UserError, match=r"at most 19 tokens, .* set --model.max_decoder_position_embeddings"):
        module.apply({"params": params}, ids, decoder_input_ids=ids)
    with pytest.raises(UserError, match=r"at most 24 tokens, .* set --model.max_position_embeddings"):
        module.apply({"params": params}, long, decoder_input_ids=ids[:, :3])


def test_lengths_and_windows_of_config_json() -> None:
    """transformers has no limit of global tokens: the default is lowered to a quarter of the longest source."""
    written = write_config(LedForConditionalGeneration(LED), [])
    assert (written["max_encoder_position_embeddings"], written["max_decoder_position_embeddings"]) == (24, 19)
    assert written["attention_window"] == [12, 4] and "max_position_embeddings" not in written
    assert read_config(written) == LED
    del written["max_global_tokens"]
    assert read_config(written).max_global_tokens == 6


def test_an_led_above_a_bart_has_its_settings_and_targets_as_long_as_before() -> None:
    bart = BartConfig.tiny(vocab_size=77, max_position_embeddings=32, dropout=0.3)
    led = LedConfig.above(bart, 128, (8, 16), 5)
    assert (led.longest, led.longest_target, led.layer_windows, led.max_global_tokens) == (128, 32, (8, 16), 5)
    others = {field.name for field in dataclasses.fields(bart)} - {"max_position_embeddings"}
    assert {name: getattr(led, name) for name in others} == {name: getattr(bart, name) for name in others}
