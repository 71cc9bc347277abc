"""The mix of layers on a mesh, and how exact the gradient of its weights can be."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from plmjax.layers.scalar_mix import ScalarMix, mix_layers
from plmjax.parallel import sharding


def test_on_eight_devices_the_gradient_is_exact_to_the_sums_that_it_is_the_difference_of() -> None:
    """d loss / d w_l = s_l (S_l - sum of s_k S_k), where S_l = <h_l, d loss / d mix> is a sum over all tokens.

    A mesh adds S_l in another order. Where layers serve the loss alike, the weights' gradient is far smaller than these
    sums, and what rounding leaves of it is relative to them; d loss / d scale = sum of s_k S_k has their size.
    """
    random = np.random.default_rng(0)
    layers = random.normal(size=(3, 16, 8, 6)).astype(np.float32)
    given = random.normal(size=layers.shape[1:]).astype(np.float32)
    # All layers go equally far along the cotangent.
    sums = np.tensordot(layers.astype(np.float64), given, 3)
    layers += ((100 - sums) / np.vdot(given, given))[:, None, None, None].astype(np.float32) * given
    boxed = ScalarMix().init(jax.random.key(0), layers)

    def gradient(params: dict, layers: jax.Array) -> dict:
        return jax.grad(lambda params: jnp.sum(given * ScalarMix().apply(params, layers)))(params)["params"]

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    rows = sharding.batch(np.moveaxis(layers, 0, 1), mesh)
    places = sharding.shardings_of(boxed, mesh), rows
    params = nn.meta.unbox(boxed)
    one = jax.jit(gradient)(params, layers)
    spread = sharding.with_mesh(lambda params, rows: gradient(params, jnp.moveaxis(rows, 1, 0)), mesh)
    eight = jax.jit(spread, in_shardings=places)(params, np.moveaxis(layers, 0, 1))
    exact = np.tensordot(layers.astype(np.float64), given, 3)
    expected = (exact - exact.mean()) / 3
    assert abs(one["scale"] - 100) < 1e-3 and np.abs(expected).max() < 1e-3
    for found in (one, eight):
        np.testing.assert_allclose(found["scale"], exact.mean(), rtol=5e-6)
        np.testing.assert_allclose(found["weights"], expected, rtol=0, atol=5e-6 * 100)
        assert np.abs(found["weights"] - expected).max() > 5e-6 * np.abs(expected).max()


def test_layers_count_by_the_softmax_of_their_weights() -> None:
    layers = np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)
    weights, scale = np.array([1.0, -0.5, 2.0], np.float32), np.float32(0.7)
    shares = np.exp(weights) / np.exp(weights).sum()
    expected = 0.7 * (shares[0] * layers[0] + shares[1] * layers[1] + shares[2] * layers[2])
    params = {"params": {"weights": weights, "scale": scale}}
    for given in (layers, tuple(layers)):
        np.testing.assert_allclose(ScalarMix().apply(params, given), expected, rtol=1e-5, atol=1e-6)
    first = ScalarMix().init_with_output(jax.random.key(0), layers)[0]
    np.testing.assert_allclose(first, layers.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_layers_and_weights_of_bfloat16_are_mixed_in_float32() -> None:
    random = np.random.default_rng(0)
    layers, weights = (jnp.asarray(random.normal(size=shape), jnp.bfloat16) for shape in ((3, 2, 4, 5), 3))
    for given in (layers, tuple(layers)):
        found = mix_layers(given, weights)
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, mix_layers(layers.astype(jnp.float32), weights.astype(jnp.float32)))
