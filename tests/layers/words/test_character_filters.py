"""Filters over the characters of words beside a loop over their places."""

import flax.linen as nn
import jax
import numpy as np

from plmjax.layers.words.character_filters import character_filters


class TwoWidths(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> list[jax.Array]:
        init = nn.initializers.normal(1.0)
        return [character_filters(self.param, x, width, 3, init, f"_{width}") for width in (1, 2)]


def test_each_filter_gives_its_largest_output_over_all_places():
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    params = nn.meta.unbox(TwoWidths().init(jax.random.key(0), x)["params"])
    assert set(params) == {"filters_1", "filter_bias_1", "filters_2", "filter_bias_2"}
    params |= {f"filter_bias_{width}": np.array([0.5, -1.0, 2.0], np.float32) for width in (1, 2)}
    for width, found in zip((1, 2), TwoWidths().apply({"params": params}, x), strict=True):
        stretches = np.stack([x[:, place : place + width] for place in range(6 - width)])
        outputs = np.einsum("pnwe,wef->pnf", stretches, params[f"filters_{width}"])
        np.testing.assert_allclose(found, outputs.max(axis=0) + params[f"filter_bias_{width}"], atol=1e-5)
