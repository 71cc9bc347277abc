"""What global attention sees and drops; the rows of CoVe and of CVT have its formula."""

import flax.linen as nn
import jax
import numpy as np

from plmjax.layers.recurrent.luong_attention import LuongAttention

RANDOM = np.random.default_rng(0)
QUERY = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
VISIBLE = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], bool)[:, None]


def test_a_query_that_sees_nothing_has_no_nan():
    source = RANDOM.normal(size=(2, 5, 4)).astype(np.float32)
    module = LuongAttention(7, nn.initializers.normal(0.5))
    found, _ = module.init_with_output(jax.random.key(0), QUERY, source, np.zeros((2, 3, 5), bool))
    assert np.all(np.isfinite(found))


def test_the_weights_are_dropped_and_nothing_else() -> None:
    """Without its weights an attention is tanh(V [0; query])."""
    source = RANDOM.normal(size=(2, 5, 4)).astype(np.float32)
    module = LuongAttention(7, nn.initializers.normal(0.5), projects_query=False, attention_dropout=1 - 1e-7)
    params = module.init(jax.random.key(0), QUERY, source, VISIBLE)
    found = module.apply(params, QUERY, source, VISIBLE, False, rngs={"dropout": jax.random.key(0)})
    kernel = nn.meta.unbox(params)["params"]["output"]["kernel"]
    np.testing.assert_allclose(found, np.tanh(QUERY @ kernel[4:]), atol=1e-6)
    assert np.abs(module.apply(params, QUERY, source, VISIBLE) - found).max() > 0.1
