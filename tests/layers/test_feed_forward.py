"""The activations: their values, and what the backward pass keeps of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.feed_forward import ACTIVATIONS
from tests.optional import needs_torch, torch

REFERENCES = {
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "relu": lambda x: torch.nn.functional.relu(x),
    "swish": lambda x: torch.nn.functional.silu(x),
}


@needs_torch
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.usefixtures("platform")
def test_values_and_gradients_are_torchs(name: str) -> None:
    x = np.linspace(-4, 4, 41, dtype=np.float32) + 0.01
    other = torch.tensor(x, requires_grad=True)
    reference = REFERENCES[name](other)
    reference.sum().backward()
    found, gradient = jax.vmap(jax.value_and_grad(ACTIVATIONS[name]))(jnp.asarray(x))
    np.testing.assert_allclose(found, reference.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, other.grad, rtol=1e-5, atol=3e-6)


def test_a_cpu_computes_on_rows_and_a_tpu_on_what_it_is_given() -> None:
    x = jax.ShapeDtypeStruct((2, 3, 8), jnp.float32)
    texts = {
        platform: jax.jit(ACTIVATIONS["gelu_new"]).trace(x).lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "tpu")
    }
    assert "stablehlo.tanh" in texts["cpu"] and "stablehlo.tanh" in texts["tpu"]
    assert "tensor<6x8xf32>" in texts["cpu"] and "tensor<6x8xf32>" not in texts["tpu"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_input_alone_is_kept(name: str) -> None:
    closed = jax.eval_shape(lambda: jax.vjp(ACTIVATIONS[name], jnp.ones((64, 64), jnp.bfloat16))[1])
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(closed)] == [((64, 64), jnp.dtype("bfloat16"))]
