"""Adagrad: the learning rate of every element decreases with its squared gradients (Duchi et al., JMLR 2011)."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath

from plmjax.errors import FROM_0, check_ranges
from plmjax.training import paths
from plmjax.training.optimizers.optimizer import Optimizer
from plmjax.training.optimizers.schedules import Constant, Schedule
from plmjax.training.optimizers.stacked import Axes, axes_of, layer_norms

Params = Any


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: update = learning_rate * gradient / (sqrt(sum of squared gradients) + epsilon)."""

    name: ClassVar[str] = "adagrad"

    learning_rate: float = 0.05
    """Peak learning rate."""
    schedule: Schedule = Constant()
    """Shape of the learning rate over the run; --optimizer.schedule NAME takes another one."""
    initial_accumulator: float = 0.0
    """The sum of squared gradients before the first step."""
    epsilon: float = 1e-10
    """Added to the root of the sum."""
    clip_each: float = 0.0
    """Maximum norm of the gradient of each parameter, separately for each layer, as in facebookresearch/adaptive-span;
    0 clips nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, initial_accumulator=FROM_0, epsilon=FROM_0, clip_each=FROM_0)

    @property
    def by_rows(self) -> bool:
        """Return true unless `clip_each` needs the norms of whole tables: a gradient of 0 adds nothing to the sum."""
        return not self.clip_each

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        clips = []
        if self.clip_each:
            every = paths.map_named(lambda name, _: True, params)
            clips = [clip_each_layer(self.clip_each, axes_of(params, every))]
        return optax.chain(
            *clips,
            scale_by_accumulated_squares(self.initial_accumulator, self.epsilon),
            optax.scale_by_learning_rate(learning_rate),
        )


@dataclasses.dataclass(frozen=True)
class GloveAdagrad(Optimizer):
    """GloVe's Adagrad: step / sqrt(1 + sum of the squares of earlier steps), where step = learning_rate * gradient.

    Deviation: Adagrad as in stanfordnlp/GloVe (glove.c) differs from the paper. The gradient is multiplied by the
    learning rate before it is squared, the sum starts at 1, and it does not include the square of the current step.
    """

    name: ClassVar[str] = "glove_adagrad"

    learning_rate: float = 0.05
    """Peak learning rate."""
    schedule: Schedule = Constant()
    """Shape of the learning rate over the run; --optimizer.schedule NAME takes another one."""
    clip_norm: float = 0.0
    """Maximum global norm of the gradient; 0 clips nothing."""

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_learning_rate(learning_rate), scale_by_squares_before())


def clip_each_layer(largest: float, axes: Axes) -> optax.GradientTransformation:
    """Clip the gradient of each array to a norm of at most `largest`; each layer of a stack is clipped separately."""

    def clip(path: KeyPath, gradient: jax.Array) -> jax.Array:
        norms = layer_norms(gradient, axes[paths.name(path)])
        return gradient * (largest / jnp.maximum(norms, largest))

    return optax.stateless(lambda gradients, params: jax.tree_util.tree_map_with_path(clip, gradients))


class AccumulatorState(NamedTuple):
    """sum_of_squares: sum of the squares so far, float32, with the shapes of the parameters."""

    sum_of_squares: Params


def scale_by_accumulated_squares(initial: float, epsilon: float) -> optax.GradientTransformation:
    """Divide gradients by sqrt(sum_of_squares) + epsilon; the result is 0 where the sum is 0.

    Deviation: optax.scale_by_rss adds epsilon within the root; torch.optim.Adagrad, followed here, adds it outside.
    """

    def init(params: Params) -> AccumulatorState:
        return AccumulatorState(optax.tree.full_like(params, initial, dtype=jnp.float32))

    def update(gradients: Params, state: AccumulatorState, params: Params = None) -> tuple[Params, AccumulatorState]:
        sums = jax.tree.map(lambda total, g: total + jnp.square(g), state.sum_of_squares, gradients)
        directions = jax.tree.map(
            lambda g, total: jnp.where(total > 0, g / jnp.where(total > 0, jnp.sqrt(total) + epsilon, 1), 0),
            gradients,
            sums,
        )
        return directions, AccumulatorState(sums)

    return optax.GradientTransformation(init, update)


def scale_by_squares_before() -> optax.GradientTransformation:
    """Divide updates by sqrt(sum_of_squares), where the sum is 1 plus the squares of earlier updates."""

    def init(params: Params) -> AccumulatorState:
        return AccumulatorState(optax.tree.full_like(params, 1.0, dtype=jnp.float32))

    def update(updates: Params, state: AccumulatorState, params: Params = None) -> tuple[Params, AccumulatorState]:
        steps = jax.tree.map(lambda u, total: u / jnp.sqrt(total), updates, state.sum_of_squares)
        sums = jax.tree.map(lambda u, total: total + jnp.square(u), updates, state.sum_of_squares)
        return steps, AccumulatorState(sums)

    return optax.GradientTransformation(init, update)
