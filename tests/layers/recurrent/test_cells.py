"""What both kinds of recurrent layers share: their dtypes, the tokens that they read, and where a text begins."""

import collections

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.recurrent.gru import Gru
from plmjax.layers.recurrent.lstm import Lstm
from plmjax.layers.recurrent.masks import recurrent_masks
from tests.products import equations

INIT = nn.initializers.normal(0.5)
BIASED = {"bias_init": INIT, "recurrent_bias": True, "projected": 3, "cell_clip": 3.0, "projection_clip": 3.0}
COMPUTED = ("add", "sub", "mul", "div", "neg", "tanh", "logistic", "exp", "integer_pow", "reduce_sum")
LAYERS = {
    "gru": (Gru(5, INIT, INIT, dtype=jnp.bfloat16), 1),
    "lstm": (Lstm(5, INIT, dtype=jnp.bfloat16), 1),
    "projected lstm": (Lstm(5, INIT, dtype=jnp.bfloat16, **BIASED), 2),
}
"""Name -> (layer, number of its biases that are added outside of the loop over time)."""


@pytest.mark.parametrize("name", LAYERS)
def test_cells_and_their_gradients_are_computed_in_float32(name: str) -> None:
    """In bfloat16 are the biases of the projections alone, with two sums of the gradient of each."""
    layer, biases = LAYERS[name]
    x = jax.ShapeDtypeStruct((2, 6, 4), jnp.bfloat16)
    params = nn.meta.unbox(jax.eval_shape(layer.init, jax.random.key(0), x))
    gradient = jax.grad(lambda params, x: jnp.sum(jnp.sin(layer.apply(params, x)[0].astype(jnp.float32))), (0, 1))
    narrow = collections.Counter(
        equation.primitive.name
        for _, equation in equations(jax.make_jaxpr(gradient)(params, x).jaxpr)
        if equation.primitive.name in COMPUTED and equation.invars[0].aval.dtype == jnp.bfloat16
    )
    assert narrow == {"add": biases, "reduce_sum": 2 * biases}


SEGMENTS = np.array([[1, 1, 2, 2, 0], [0, 1, 1, 1, 2]])


def test_without_masks_a_row_is_one_text_without_padding():
    assert recurrent_masks(None, None) == {"visible": None, "starts": None}


def test_padding_is_what_either_mask_says():
    attention_mask = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = recurrent_masks(attention_mask, SEGMENTS)["visible"]
    np.testing.assert_array_equal(found, [[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]])
    alone = recurrent_masks(attention_mask, None)
    np.testing.assert_array_equal(alone["visible"], attention_mask > 0)
    assert alone["starts"] is None


def test_a_text_begins_where_its_segment_or_its_type_changes():
    found = recurrent_masks(None, SEGMENTS)["starts"]
    np.testing.assert_array_equal(found, [[1, 0, 1, 0, 1], [1, 1, 0, 0, 1]])
    types = np.array([[0, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    found = recurrent_masks(None, SEGMENTS, types)["starts"]
    np.testing.assert_array_equal(found, [[1, 1, 1, 0, 1], [1, 1, 0, 1, 1]])
