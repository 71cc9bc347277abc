"""The activations: their values, and what the backward pass keeps of them."""

import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.errors import UserError
from plmjax.layers.feed_forward import ACTIVATIONS, FeedForward
from plmjax.models.bert import BertConfig
from plmjax.parallel import sharding
from tests.optional import needs_torch, torch


@needs_torch
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.usefixtures("platform")
def test_values_and_gradients_are_those_of_transformers(name: str) -> None:
    from transformers.activations import ACT2FN

    x = np.linspace(-4, 4, 41, dtype=np.float32) + 0.01
    other = torch.tensor(x, requires_grad=True)
    reference = ACT2FN[name](other)
    reference.sum().backward()
    found, gradient = jax.jit(jax.vmap(jax.value_and_grad(ACTIVATIONS[name])))(jnp.asarray(x))
    np.testing.assert_allclose(found, reference.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, other.grad, rtol=1e-5, atol=3e-6)


@needs_torch
def test_every_name_in_transformers_is_known_or_refused_without_another_name() -> None:
    from transformers.activations import ACT2CLS

    for name in ACT2CLS:
        if name not in ACTIVATIONS:
            said = f"Expected an activation of gelu_new, .*found '{name}'; take one"
            with pytest.raises(UserError, match=said) as error:
                BertConfig(hidden_act=name)
            assert "did you mean" not in str(error.value)
    known = dict.fromkeys(ACTIVATIONS)
    same = [name for name in known if ACTIVATIONS[name] is ACTIVATIONS["gelu_new"]]
    assert same == ["gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_exact_gelu_is_as_precise_as_its_dtype(dtype: jnp.dtype) -> None:
    """Also far below zero, where 1 + erf would be 0 or 1/128 in bfloat16."""
    x = jnp.linspace(-8, 8, 2001).astype(dtype)
    wide = np.asarray(x, np.float64)
    expected = 0.5 * wide * np.array([math.erfc(-one / math.sqrt(2)) for one in wide])
    found = ACTIVATIONS["gelu"](x)
    assert found.dtype == dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=float(jnp.finfo(dtype).eps), atol=1e-6)


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


def test_the_features_inside_are_dropped_by_the_devices_that_have_them() -> None:
    """Each of four devices draws the bits of its own rows and features: a fourth of [4 2 16], four of 8 bits a word."""
    module = FeedForward(16, "relu", jax.nn.initializers.ones, dropout=0.5)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 1, 2), ("data", "fsdp", "tensor"))
    x, key = jnp.ones((4, 8, 3)), jax.random.key(0, impl="rbg")
    params = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), x))
    apply = lambda params: module.apply(params, x, deterministic=False, rngs={"dropout": key})  # noqa: E731
    text = jax.jit(sharding.with_mesh(apply, mesh)).lower(params).as_text()
    assert re.findall(r"rng_bit_generator.*tensor<([\dx]+)xui32>", text) == ["2x2x8"]


def test_each_kernel_has_its_initializer() -> None:
    inits = jax.nn.initializers.constant(2.0), jax.nn.initializers.constant(3.0)
    x = jnp.ones((1, 4))
    init = jax.jit(lambda module: nn.meta.unbox(module.init(jax.random.key(0), x))["params"], static_argnums=0)
    own = init(FeedForward(6, "relu", inits[0], output_init=inits[1]))
    assert (own["intermediate"]["kernel"] == 2).all() and (own["output"]["kernel"] == 3).all()
    same = init(FeedForward(6, "relu", inits[0]))
    assert (same["output"]["kernel"] == 2).all()
