"""The scores that a language model gives to every token of its vocabulary.

A module returns them as `scores`. Objectives, generation and inference call the methods below and read nothing else, so
a model is free to compute them with a full softmax, an adaptive one, or any other.
"""

import abc
from typing import Protocol

import jax
import jax.numpy as jnp


class TokenScores(Protocol):
    """Scores of the next token at T positions of B rows. A class of scores inherits from it and is a pytree."""

    @abc.abstractmethod
    def logits(self) -> jax.Array:
        """All logits, float32 [B T V]; their softmax is the distribution over the vocabulary."""

    @abc.abstractmethod
    def last_logits(self) -> jax.Array:
        """The logits at the last position of every row, float32 [B V]; no others are computed."""

    @abc.abstractmethod
    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """int [B T] -> -log softmax(logits)[targets], float32 [B T], and if no token scores higher, bool [B T]."""

    def weighted_cross_entropy(self, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """sum(weights x nats) of `cross_entropy`, float32 scalar, and its second result; targets and weights [B T].

        A class overrides it if the weights save it work.
        """
        nats, likeliest = self.cross_entropy(targets)
        return jnp.sum(weights * nats), likeliest

    def smoothed_cross_entropy(
        self, targets: jax.Array, weights: jax.Array, *, smoothing: float, z_loss: float
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """sum(weights x (smoothed nats + z_loss log(Z)^2)), float32 scalar; and both results of `cross_entropy`.

        Smoothed nats are the cross-entropy with 1 - smoothing for the target and smoothing / (V - 1) for every other
        token. log(Z) is logsumexp of a position's logits; it is 0 for logits that are log probabilities. No gradient
        passes through the second result, float32 [B T].

        By default it computes all logits, unless both factors are 0.
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
