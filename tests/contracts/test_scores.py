"""Scores over a vocabulary: every class agrees with its own logits."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.scores import TokenScores
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.objectives.sampled_softmax import SampledScores, draw
from tests.third_party.windowed import AdaptiveScores

B, T, D, V = 2, 3, 5, 11
RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


FULL = VocabularyScores(drawn(B, T, D), drawn(V, D), drawn(V))
ADAPTIVE = AdaptiveScores(drawn(B, T, D), drawn(5, D), drawn(D, 2), drawn(V - 4, 2))
EVERY = pytest.mark.parametrize("scores", [FULL, ADAPTIVE], ids=["full", "adaptive"])
TARGETS = jnp.array([[0, 3, 4], [10, 2, 7]])
WEIGHTS = jnp.array([[1, 0.5, 0], [2, 1, 0.25]])


def log_probabilities(scores: TokenScores) -> jax.Array:
    return jax.nn.log_softmax(scores.logits(), axis=-1)


def nats(scores: TokenScores) -> jax.Array:
    return -jnp.take_along_axis(log_probabilities(scores), TARGETS[..., None], axis=-1)[..., 0]


@EVERY
def test_cross_entropy_and_hits_are_those_of_the_logits(scores: TokenScores) -> None:
    best = jnp.argmax(scores.logits(), axis=-1)
    for targets, expected in ((TARGETS, best == TARGETS), (best, jnp.ones_like(best, bool))):
        found, likeliest = scores.cross_entropy(targets)
        chosen = jnp.take_along_axis(log_probabilities(scores), targets[..., None], axis=-1)[..., 0]
        np.testing.assert_allclose(found, -chosen, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(likeliest, expected)


@EVERY
def test_last_logits_are_those_of_the_last_position(scores: TokenScores) -> None:
    np.testing.assert_allclose(scores.last_logits(), scores.logits()[:, -1], rtol=1e-6)


def test_logits_of_a_few_tokens_are_those_of_the_whole_vocabulary() -> None:
    for scores in (FULL, FULL.replace(bias=None)):
        logits = scores.logits()
        np.testing.assert_allclose(scores.token_logits(jnp.array([7, 0])), logits[..., [7, 0]], rtol=1e-5, atol=1e-6)
        chosen = jnp.take_along_axis(logits, TARGETS[..., None], axis=-1)[..., 0]
        np.testing.assert_allclose(scores.target_logits(TARGETS), chosen, rtol=1e-5, atol=1e-6)


@EVERY
def test_sums_and_their_gradients_are_those_of_the_logits(scores: TokenScores) -> None:
    smoothing, z_loss = 0.1, 0.02

    def expected(scores: TokenScores) -> jax.Array:
        others = jnp.sum(-log_probabilities(scores), axis=-1) - nats(scores)
        losses = (1 - smoothing) * nats(scores) + smoothing / (V - 1) * others
        return jnp.sum(WEIGHTS * (losses + z_loss * jax.nn.logsumexp(scores.logits(), axis=-1) ** 2))

    def found(scores: TokenScores) -> tuple[jax.Array, Any]:
        loss, *rest = scores.smoothed_cross_entropy(TARGETS, WEIGHTS, smoothing=smoothing, z_loss=z_loss)
        return loss, rest

    gradient = functools.partial(jax.value_and_grad, has_aux=True)
    (loss, (plain, likeliest)), of_scores = jax.jit(gradient(found))(scores)
    chex.assert_trees_all_close((loss, of_scores), jax.value_and_grad(expected)(scores), rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close((plain, likeliest), scores.cross_entropy(TARGETS), rtol=1e-5, atol=1e-6)
    plain = jax.jit(lambda scores: scores.weighted_cross_entropy(TARGETS, WEIGHTS))(scores)
    chex.assert_trees_all_close(plain, (jnp.sum(WEIGHTS * nats(scores)), likeliest), rtol=1e-5, atol=1e-6)


def test_sampled_scores_have_the_logits_of_the_vocabulary() -> None:
    sampled = SampledScores(FULL, draw(jax.random.key(0), V, 4))
    np.testing.assert_array_equal(sampled.logits(), FULL.logits())
    np.testing.assert_array_equal(sampled.last_logits(), FULL.last_logits())
