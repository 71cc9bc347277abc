"""The cache of the Lite Transformer; tests/families has its row."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerForConditionalGeneration
from tests.families.encoder_decoders import LITE
from tests.families.family import both_sides
from tests.systems.modules import outputs, random_params

MODULE = LiteTransformerForConditionalGeneration(LITE)
BATCH = both_sides(LITE)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE)


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
