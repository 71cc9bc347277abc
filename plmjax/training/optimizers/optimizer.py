"""The base class of all update rules: clipping, schedule, frozen parameters, learning rates of layers, evaluations.

An update is a chain of optax transformations: clipping by the global norm, the rule itself with the learning rate of
the schedule, then the factor of that rate that evaluations have set. Arrays of the state have the shapes of the
parameters and are sharded in the same way.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from plmjax.contracts.system import ParameterGroup
from plmjax.errors import FROM_0, UserError, check_ranges
from plmjax.experiment import Choice
from plmjax.training import paths
from plmjax.training.optimizers.averaging import AverageState
from plmjax.training.optimizers.clipping import clip_by_global_norm
from plmjax.training.optimizers.freezing import freeze, freeze_layers
from plmjax.training.optimizers.layer_rates import layer_rates
from plmjax.training.optimizers.schedules import Linear, Schedule

Params = Any


@dataclasses.dataclass(frozen=True)
class Optimizer(Choice):
    """Base class of the update rules. A subclass is a frozen dataclass of its settings with a method `rule`."""

    learning_rate: float = 1e-4
    """Peak learning rate."""
    schedule: Schedule = Linear()
    """Shape of the learning rate over the run. --optimizer.schedule NAME takes another one: constant, cosine,
    inverse_root_time, inverse_square_root, inverse_time, linear, linear_times_warmup, plateau, polynomial,
    slanted_triangular or warmup_stable_decay.
    """
    clip_norm: float = 1.0
    """Maximum global norm of the gradient; 0 clips nothing."""
    frozen: tuple[str, ...] = ()
    """Parameters whose path starts with one of these names are not trained; layers[:6] are the first six layers."""
    layer_decay: float = 1.0
    """Factor from the learning rate of a layer to that of the layer below; 1 gives all layers the same rate."""
    unfreeze_every: int = 0
    """Number of steps after which one more group of parameters is trained, from the head down; 0 trains all."""

    def __post_init__(self) -> None:
        check_ranges("optimizer", self, learning_rate=FROM_0, clip_norm=FROM_0, unfreeze_every=FROM_0)
        if not 0 < self.layer_decay <= 1:
            raise UserError(
                f"Expected --optimizer.layer_decay above 0 and up to 1, found {self.layer_decay}; change it."
            )

    @property
    def by_rows(self) -> bool:
        """Return whether the rule leaves a table row with gradient 0, and its optimizer state, unchanged.

        If so, the rule may be applied only to the rows with a gradient.
        """
        return False

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        """Return the transformation from clipped gradients to updates, already multiplied by -learning_rate.

        params: as for `build`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `rule`.")

    def decay_mask(self, params: Params) -> Params:
        """Return a tree of bool, true for parameters to which weight decay applies. params: boxed or unboxed."""
        return paths.map_named(lambda name, _: False, params)

    def with_average(self, update: optax.GradientTransformation) -> optax.GradientTransformation:
        """Return `update`, with a mean of the parameters in its state if the rule averages them."""
        return update

    def on_evaluation(self, state: optax.OptState, value: jax.Array) -> optax.OptState:
        """Return the state of the rule after an evaluation."""
        return state

    def rates(self, steps: int, start: int = 0) -> optax.Schedule:
        """Return the function from a step of the run to the learning rate, for a schedule of `steps` steps.

        start: step of the run at which the schedule starts.
        """
        rates = self.schedule.rates(self.learning_rate, steps)
        return (lambda step: rates(step - start)) if start else rates

    def build(
        self, steps: int, params: Params, groups: Sequence[ParameterGroup] = (), *, start: int = 0
    ) -> optax.GradientTransformation:
        """Return the transformation for a run, or for a phase of it, whose schedule has `steps` optimizer steps.

        Args:
            params: the parameters, possibly abstract, boxed with their logical axes. Only paths and axes are used. The
                transformation itself takes the same tree, boxed or unboxed. Rules that treat layers separately, such as
                LAMB, and learning rates of layers need the axes.
            groups: the model's parameters below the head, from bottom to top, for learning rates of layers.
            start: step of the run at which the schedule starts. The state does not depend on it, so moments are kept.

        Raises:
            UserError: no parameter has a name in `frozen`, an entry has layers but its parameters are not stacked, or
                learning rates of layers are set for a model without groups.
        """
        update = optax.chain(
            clip_by_global_norm(self.clip_norm),
            self.rule(self.rates(steps, start), params),
            scale_by_schedule_state(self.schedule),
        )
        if self.layer_decay != 1 or self.unfreeze_every:
            update = layer_rates(update, self.layer_decay, self.unfreeze_every, params=params, groups=groups)
        update = freeze_layers(update, self.frozen, params)
        return freeze(self.with_average(update), self.frozen, params)


class ScheduleState(NamedTuple):
    """schedule: state of the schedule, which evaluations change (`Schedule.start`)."""

    schedule: Any


def scale_by_schedule_state(schedule: Schedule) -> optax.GradientTransformation:
    """Multiply updates by the factor of the learning rate that evaluations have set."""

    def init(params: Params) -> ScheduleState:
        return ScheduleState(schedule.start())

    def update(updates: Params, state: ScheduleState, params: Params = None) -> tuple[Params, ScheduleState]:
        factor = schedule.factor(state.schedule)
        return jax.tree.map(lambda leaf: leaf * factor, updates), state

    return optax.GradientTransformation(init, update)


def on_evaluation(optimizer: Optimizer, state: optax.OptState, value: float | jax.Array) -> optax.OptState:
    """Return the optimizer state after an evaluation. Most rules do not change it.

    The function may be jitted: the result has the structure, shapes and dtypes of `state`.

    Args:
        state: state of the transformation that `optimizer.build` returned.
        value: scalar, a metric of the evaluation for which smaller is better; NaN is the worst value.
    """
    value = jnp.asarray(value, jnp.float32)
    value = jnp.where(jnp.isnan(value), jnp.inf, value)
    chex.assert_rank(value, 0)
    state = map_states(
        ScheduleState, lambda node: ScheduleState(optimizer.schedule.on_evaluation(node.schedule, value)), state
    )
    return optimizer.on_evaluation(state, value)


def learning_rate(optimizer: Optimizer, state: optax.OptState, rates: optax.Schedule, step: jax.Array) -> jax.Array:
    """Return the learning rate of a step, float32 scalar, with the factor that evaluations so far have set.

    rates: from `Optimizer.rates`.
    """
    (found,) = _states(ScheduleState, state)
    return rates(step) * optimizer.schedule.factor(found.schedule)


def gradient_norm(state: optax.OptState) -> jax.Array:
    """Return the global norm of the last gradient before clipping, without frozen parameters."""
    return optax.tree.get(state, "global_norm")


def evaluation_params(state: optax.OptState, params: Params) -> Params:
    """Return the parameters to evaluate and to save: their mean once the rule has started to average them.

    Args:
        params: the parameters that the rule updates, unboxed. They are returned unchanged if there is no mean.
    """
    averages = _states(AverageState, state)
    if not averages:
        return params
    (average,) = averages

    def choose(mean: Any, param: jax.Array) -> jax.Array:
        if isinstance(mean, optax.MaskedNode):  # a frozen parameter
            return param
        return jnp.where(average.count > 0, mean, param.astype(jnp.float32)).astype(param.dtype)

    is_masked = lambda node: isinstance(node, optax.MaskedNode)  # noqa: E731
    return jax.tree.map(choose, average.mean, params, is_leaf=is_masked)


def has_average(state: optax.OptState) -> bool:
    """Return whether the rule keeps a mean of the parameters, which `evaluation_params` may return."""
    return bool(_states(AverageState, state))


def _states(kind: type, state: optax.OptState) -> list[Any]:
    """Return all states of one class within an optimizer state."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def map_states(kind: type, function: Callable[[Any], Any], state: optax.OptState) -> optax.OptState:
    """Return an optimizer state in which `function` is applied to every state of one class."""
    is_kind = lambda node: isinstance(node, kind)  # noqa: E731
    return jax.tree.map(lambda node: function(node) if is_kind(node) else node, state, is_leaf=is_kind)
