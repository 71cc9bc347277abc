"""StableAdamW: AdamW with update clipping (Wortsman et al., arXiv 2304.13013)."""

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
    """StableAdamW with which ModernBERT was trained (AnswerDotAI/ModernBERT src/optimizer.py, `decouple_lr`).

    The learning rate of a parameter is divided by the root mean square of gradient / sqrt(mean_square) if that is above
    1, so that gradients need no clipping. Weight decay is fully decoupled: a step removes the fraction rate / peak *
    weight_decay of a parameter, where rate is the divided learning rate. The peak cancels out.

    Deviation: a parameter of stacked layers is clipped layer by layer, as the separate parameters of the released code.
    """

    name: ClassVar[str] = "stable_adamw"

    clip_norm: float = 0.0
    """Maximum global norm of the gradient; 0 clips nothing. The rule limits updates itself."""
    beta2: float = 0.98
    """Decay of the second moment."""
    weight_decay: float = 1e-5
    """Fraction of a parameter that a step at the peak learning rate removes."""

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        """Return the transformation. A parameter with a "layers" axis counts as one parameter for each layer."""
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
    """Return running averages with bias correction. The decay is 0 at the first update and approaches beta."""

    def add(average: jax.Array, value: jax.Array, count: jax.Array) -> jax.Array:
        decay = (beta**count - beta) / (beta**count - 1)
        return average + (1 - decay) * (value - average)

    return jax.tree.map(add, average, values, counts)


def _gradient_sizes(axes: Axes, gradients: Params, mean_square: Params, epsilon: float) -> Params:
    """Return the root mean square of gradient / sqrt(mean_square) for each layer of each parameter."""

    def size(path: KeyPath, gradient: jax.Array, average: jax.Array) -> jax.Array:
        return layer_root_mean_squares(gradient / jnp.sqrt(jnp.maximum(average, epsilon**2)), axes[paths.name(path)])

    return jax.tree_util.tree_map_with_path(size, gradients, mean_square)


def _like(params: Params, flags: Params) -> Params:
    """Return a tree of flags with the structure of `params`, boxed or not."""
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(flags))
