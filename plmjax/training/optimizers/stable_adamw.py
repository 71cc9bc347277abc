"""StableAdamW: AdamW whose updates are clipped by the size of their gradients (Wortsman et al., arXiv 2304.13013)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath

from plmjax.training import paths
from plmjax.training.optimizers.adam import Moments
from plmjax.training.optimizers.stacked import Axes, axes_of, layer_root_mean_squares

Params = Any


@dataclasses.dataclass(frozen=True)
class StableAdamW(Moments):
    """StableAdamW as ModernBERT was trained (AnswerDotAI/ModernBERT src/optimizer.py, `decouple_lr`).

    The learning rate of a parameter is divided by the root mean square of gradient / sqrt(mean_square) where that is
    above 1, so that no gradient has to be clipped. Decay is fully decoupled: a step takes rate / peak * weight_decay of
    a parameter, whatever the peak.

    Deviation: a parameter of stacked layers is clipped layer by layer, as separate parameters are in the release.
    """

    name: ClassVar[str] = "stable_adamw"

    clip_norm: float = 0.0
    """Maximum global norm of the gradient; 0 clips nothing. The rule limits updates itself."""
    beta2: float = 0.98
    """Decay of the second moment."""
    weight_decay: float = 1e-5
    """Fraction of a parameter that a step at the peak learning rate takes away."""

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        """Return the transformation; a parameter with a "layers" axis is a parameter for each layer."""
        axes = axes_of(params, paths.map_named(lambda name, _: True, params))
        decays = self.decay_mask(params)
        relative = self.weight_decay / self.learning_rate if self.learning_rate else 0.0

        def update(
            gradients: Params, state: optax.ScaleByAdamState, params: Params = None, *, counts: Params | None = None
        ) -> tuple[Params, optax.ScaleByAdamState]:
            rate, count = learning_rate(state.count), optax.safe_increment(state.count)
            if counts is None:
                counts = jax.tree.map(lambda _: count, gradients)
            mean = _average(self.beta1, state.mu, gradients, counts)
            mean_square = _average(self.beta2, state.nu, jax.tree.map(jnp.square, gradients), counts)
            size = _gradient_sizes(axes, gradients, mean_square, self.epsilon)

            def step(m: jax.Array, v: jax.Array, s: jax.Array, parameter: jax.Array, decay: bool) -> jax.Array:
                own = rate / jnp.maximum(s, 1)
                return -own * (m / (jnp.sqrt(v) + self.epsilon) + (relative * parameter if decay else 0))

            updates = jax.tree.map(step, mean, mean_square, size, params, _like(params, decays))
            return updates, optax.ScaleByAdamState(count, mean, mean_square)

        return optax.GradientTransformationExtraArgs(optax.scale_by_adam().init, update)


def _average(beta: float, average: Params, values: Params, counts: Params) -> Params:
    """Return averages that weigh all values so far alike at first: the bias correction is within the decay."""

    def add(average: jax.Array, value: jax.Array, count: jax.Array) -> jax.Array:
        decay = (beta**count - beta) / (beta**count - 1)
        return average + (1 - decay) * (value - average)

    return jax.tree.map(add, average, values, counts)


def _gradient_sizes(axes: Axes, gradients: Params, mean_square: Params, epsilon: float) -> Params:
    """Return the root mean square of gradient / sqrt(mean_square) of each layer."""

    def size(path: KeyPath, gradient: jax.Array, average: jax.Array) -> jax.Array:
        return layer_root_mean_squares(gradient / jnp.sqrt(jnp.maximum(average, epsilon**2)), axes[paths.name(path)])

    return jax.tree_util.tree_map_with_path(size, gradients, mean_square)


def _like(params: Params, flags: Params) -> Params:
    """Return a tree of flags with the structure of `params`, boxed or not."""
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(flags))
