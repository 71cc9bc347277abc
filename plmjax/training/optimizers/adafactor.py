"""Adafactor: second moments as products of rows and columns (Shazeer and Stern, ICML 2018, arXiv 1804.04235)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath

from plmjax.errors import FROM_0, FROM_1, check_ranges
from plmjax.training import paths
from plmjax.training.optimizers.optimizer import Optimizer
from plmjax.training.optimizers.schedules import InverseSquareRoot, Schedule
from plmjax.training.optimizers.stacked import Axes, axes_of, layer_root_mean_squares

Params = Any


@dataclasses.dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor as T5 uses it: no momentum, and steps relative to the size of the parameters (Raffel et al. 2020).

    With the default learning rate and schedule, the relative step size is 0.01 until step 10,000, and that of the
    paper's algorithm 5 from then on. This is T5's schedule.

    Deviation: mesh-tensorflow factors a matrix [inputs, outputs]. Here a kernel with more than two axes, such as one
    with heads, is factored along its two longest axes, for each index of the others.
    """

    name: ClassVar[str] = "adafactor"

    learning_rate: float = 0.01
    """Peak learning rate, relative to the size of a parameter if `relative`."""
    schedule: Schedule = InverseSquareRoot(constant_steps=10_000)
    """Shape of the learning rate over the run; --optimizer.schedule NAME takes another one."""
    clip_norm: float = 0.0
    """Maximum global norm of the gradient; 0 clips nothing."""
    relative: bool = True
    """True to multiply the learning rate by the root mean square of the parameter."""
    smallest_size: float = 1e-3
    """Lower bound of the root mean square of a parameter, so that a parameter of zeros is trained."""
    decay_exponent: float = 0.8
    """At step t the decay of the second moments is 1 - t ** -decay_exponent."""
    clip_update: float = 1.0
    """Maximum root mean square of a parameter's update, before the learning rate; 0 clips nothing."""
    epsilon: float = 1e-30
    """Added to the squared gradient."""
    factored_from: int = 128
    """Second moments are factored if the second longest axis of a parameter has at least this size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_0 = ("smallest_size", "decay_exponent", "clip_update", "epsilon")
        check_ranges("optimizer", self, **dict.fromkeys(at_least_0, FROM_0), factored_from=FROM_1)

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        axes = axes_of(params, paths.map_named(lambda name, _: True, params))
        return optax.chain(
            optax.scale_by_factored_rms(
                decay_rate=self.decay_exponent, min_dim_size_to_factor=self.factored_from, epsilon=self.epsilon
            ),
            clip_layers(self.clip_update, axes) if self.clip_update else optax.identity(),
            optax.scale_by_learning_rate(learning_rate),
            scale_by_size(self.smallest_size, axes) if self.relative else optax.identity(),
        )


def clip_layers(largest: float, axes: Axes) -> optax.GradientTransformation:
    """Scale each layer's update to a root mean square of at most `largest`."""

    def clip(path: KeyPath, update: jax.Array) -> jax.Array:
        size = layer_root_mean_squares(update, axes[paths.name(path)])
        return update / jnp.maximum(1, size / largest)

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(clip, updates))


def scale_by_size(smallest: float, axes: Axes) -> optax.GradientTransformation:
    """Multiply each layer's update by the root mean square of its parameters, or by `smallest` if that is larger."""

    def scale(path: KeyPath, update: jax.Array, parameter: jax.Array) -> jax.Array:
        return update * jnp.maximum(layer_root_mean_squares(parameter, axes[paths.name(path)]), smallest)

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates, params))
