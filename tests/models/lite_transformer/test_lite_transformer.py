"""Properties of the Lite Transformer alone: kernels, packed rows, its cache, its dropouts and its FLOPs."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers.convolutions import CONVOLUTIONS, LightweightConvolution
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerForConditionalGeneration
from tests.families.encoder_decoders import LITE
from tests.families.family import both_sides
from tests.systems.modules import outputs, random_params

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
    """Deviation: it reads the bias of the first projection there in the released code. Here padding may be cut off.

    tests/systems has the padding of whole models.
    """
    convolution = CONVOLUTIONS["lightweight"](4, 2, 3, 0.0, jax.nn.initializers.lecun_normal())
    x, shown = jnp.ones((1, 5, 4)), jnp.asarray([[1, 1, 1, 0, 0]])

    def convolved(here: LightweightConvolution, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        inputs = here.inputs(x, mask)
        return here(inputs, jnp.pad(inputs, ((0, 0), (1, 1), (0, 0))), deterministic=True)

    run = jax.jit(functools.partial(convolution.apply, method=convolved))
    drawn = jax.jit(functools.partial(convolution.init, method=convolved))(jax.random.key(0), x, None)
    drawn = jax.tree.map(lambda leaf: leaf + 0.5, nn.meta.unbox(drawn))
    ours, theirs = run(drawn, x, shown), run(drawn, x * shown[..., None], None)
    np.testing.assert_allclose(ours[:, :2], theirs[:, :2], rtol=1e-6)
    assert np.abs(ours[:, 2] - theirs[:, 2]).max() > 1e-2  # the last real token
