"""Properties of LED alone: the global token, and lengths of both sides."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.interop.led import read_config, write_config
from plmjax.models.longformer.encoder_decoder import LedForConditionalGeneration
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


def test_lengths_and_windows_of_config_json() -> None:
    """transformers has no limit of global tokens: the default is lowered to a quarter of the longest source."""
    written = write_config(LedForConditionalGeneration(LED), [])
    assert (written["max_encoder_position_embeddings"], written["max_decoder_position_embeddings"]) == (24, 19)
    assert written["attention_window"] == [12, 4] and "max_position_embeddings" not in written
    assert read_config(written) == LED
    del written["max_global_tokens"]
    assert read_config(written).max_global_tokens == 6
