"""The scores that a language model gives to every token of its vocabulary.

A module returns them as `scores`. Objectives, generation and inference call only the methods of `TokenScores`. So a
model may compute the scores with a full softmax, an adaptive softmax, or in any other way.
"""

import abc
from typing import Protocol

import jax
import jax.numpy as jnp


class TokenScores(Protocol):
    """Scores of the next token at T positions of B rows.

    A class of scores inherits from this class and is a pytree.
    """

    @abc.abstractmethod
    def logits(self) -> jax.Array:
        """Return all logits, float32 [B T V]. Their softmax is the distribution over the vocabulary."""

    @abc.abstractmethod
    def last_logits(self) -> jax.Array:
        """Return the logits at the last position of every row, float32 [B V]. No other logits are computed."""

    @abc.abstractmethod
    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the cross-entropy and the hits for targets, int [B T].

        The cross-entropy is -log softmax(logits)[targets], float32 [B T]. A hit is true if no token has a higher score
        than the target, bool [B T]. A class that chooses a token in several steps may count the hits of all steps.
        """

    def weighted_cross_entropy(self, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return sum(weights x nats), float32 scalar, and the hits; targets and weights are [B T].

        The nats (cross-entropies) and the hits are the results of `cross_entropy`. A class overrides this method if the
        weights, such as those of 0, allow it to compute less.
        """
        nats, likeliest = self.cross_entropy(targets)
        return jnp.sum(weights * nats), likeliest

    def smoothed_cross_entropy(
        self, targets: jax.Array, weights: jax.Array, *, smoothing: float, z_loss: float
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the smoothed loss, float32 scalar, and both results of `cross_entropy`.

        The loss is sum(weights x (smoothed nats + z_loss log(Z)^2)). The smoothed nats are the cross-entropy with a
        distribution that has 1 - smoothing for the target and smoothing / (V - 1) for every other token. log(Z) is the
        logsumexp of a position's logits; it is 0 if the logits are log probabilities. No gradient passes through the
        second result.

        This implementation computes all logits, unless `smoothing` and `z_loss` are 0.
        """
        nats, likeliest = self.cross_entropy(targets)
        losses = nats
        if smoothing or z_loss:
            logits = self.logits()
            normalizer = jax.nn.logsumexp(logits, axis=-1)
            others = jnp.sum(logits, axis=-1) - (normalizer - nats)
            losses = (1 - smoothing) * nats + smoothing * (normalizer - others / max(logits.shape[-1] - 1, 1))
            losses += z_loss * normalizer**2
        return jnp.sum(weights * losses), jax.lax.stop_gradient(nats), likeliest
