"""Cells in bfloat16 multiply matrices of it and nothing else: gates, states and their gradients are float32."""

import collections

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from plmjax.layers.recurrent.gru import Gru
from plmjax.layers.recurrent.lstm import Lstm
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
