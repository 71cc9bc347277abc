"""Convolutions over tokens: against their definition, and the borders of rows and of packed sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.convolutions import convolve, shared_scores

RANDOM = np.random.default_rng(0)
LENGTH, HEADS, FEATURES, SIZE = 11, 3, 12, 5


def definition(weights: np.ndarray, x: np.ndarray, before: int) -> np.ndarray:
    """y[t, c] = sum over k of weights[t, head of c, k] x[t + k - before, c], for one row [T C]."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        for c in range(x.shape[1]):
            for k in range(weights.shape[-1]):
                if 0 <= t + k - before < len(x):
                    y[t, c] += weights[t, c * weights.shape[1] // x.shape[1], k] * x[t + k - before, c]
    return y


@pytest.mark.parametrize("before", [2, 4], ids=["both sides", "the past"])
def test_equals_the_definition_in_packed_rows(before: int) -> None:
    """Each sequence is as in a row of its own; the weights of a shared kernel need no axes of tokens."""
    weights, x = RANDOM.normal(size=(1, LENGTH, HEADS, SIZE)), RANDOM.normal(size=(1, LENGTH, FEATURES))
    window = np.pad(x, ((0, 0), (before, SIZE - 1 - before), (0, 0)))
    with jax.enable_x64(True):
        whole = convolve(jnp.asarray(weights), jnp.asarray(window))
        np.testing.assert_allclose(whole[0], definition(weights[0], x[0], before), rtol=1e-12, atol=1e-12)
        segments = np.array([[1] * 4 + [2] * 6 + [0]])
        packed = convolve(jnp.asarray(weights), jnp.asarray(window), jnp.asarray(segments), before)
        for own in (slice(0, 4), slice(4, 10)):
            alone = definition(weights[0, own], x[0, own], before)
            np.testing.assert_allclose(packed[0, own], alone, rtol=1e-12, atol=1e-12)
        shared = convolve(jnp.asarray(weights[0, 0]), jnp.asarray(window))
        everywhere = np.broadcast_to(weights[0, 0], weights[0].shape)
        np.testing.assert_allclose(shared[0], definition(everywhere, x[0], before), rtol=1e-12, atol=1e-12)


def test_shared_scores_are_uniform_within_the_bound_of_the_released_code() -> None:
    scores = np.asarray(shared_scores(jax.random.key(0), (3, 2000)))
    bound = np.sqrt(6 / (2000 + 3 * 2000))  # a kernel of one input and three outputs
    assert 0.97 * bound < np.abs(scores).max() <= bound and abs(scores.std() - bound / np.sqrt(3)) < 0.03 * bound
