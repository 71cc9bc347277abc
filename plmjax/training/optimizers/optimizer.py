"""The base of all update rules: clipping, schedule, frozen parameters, rates of layers, evaluations.

An update is a chain of optax transformations: clip by the global norm, the rule itself with the learning rate of the
schedule, then what evaluations have made of that rate. The state has the parameters' shapes, so that it is sharded as
they are.
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
    """Base of the update rules. A subclass is a frozen dataclass of its settings and gives `rule`."""

    learning_rate: float = 1e-4
    """Peak learning rate."""
    schedule: Schedule = Linear()
    """Shape of the learning rate over the run. --optimizer.schedule NAME takes another one: constant, cosine,
    inverse_root_time, inverse_square_root, inverse_time, linear, linear_times_warmup, plateau or slanted_triangular."""
    clip_norm: float = 1.0
    """Largest global norm of the gradient; 0 clips nothing."""
    frozen: tuple[str, ...] = ()
    """Parameters whose path begins with one of these names are not trained; layers[:6] are the first six of a stack."""
    layer_decay: float = 1.0
    """Factor from the learning rate of a layer to that of the layer below it; 1 gives all layers one rate."""
    unfreeze_every: int = 0
    """Steps from which on each next group of parameters is trained, the head first; 0 trains all from the start."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("optimizer", self, learning_rate=FROM_0, clip_norm=FROM_0, unfreeze_every=FROM_0)
        if not 0 < self.layer_decay <= 1:
            raise UserError(
                f"Expected --optimizer.layer_decay above 0 and up to 1, found {self.layer_decay}; change it."
            )

    @property
    def by_rows(self) -> bool:
        """Return whether a row of a table whose gradient is 0 keeps its value and all that the rule holds of it.

        Then the rule may be given those rows alone that have a gradient.
        """
        return False

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        """The update for clipped gradients, learning rate and sign included; `params` as for `build`."""
        raise NotImplementedError(f"{type(self).__name__} must say how it updates parameters.")

    def decayed(self, params: Params) -> Params:
        """Tree of bool, one a parameter (a boxed one counts once): whether weight decay applies to it."""
        return paths.map_named(lambda name, _: False, params)

    def averaged(self, update: optax.GradientTransformation) -> optax.GradientTransformation:
        """`update`, with an average of the parameters in its state if the rule has one."""
        return update

    def on_evaluation(self, state: optax.OptState, value: jax.Array) -> optax.OptState:
        """The rule's own state after an evaluation."""
        return state

    def build(self, steps: int, params: Params, groups: Sequence[ParameterGroup] = ()) -> optax.GradientTransformation:
        """The update of a run of `steps` optimizer steps.

        Args:
            params: the parameters, abstract ones too, boxed with their logical axes. Only paths and axes are read; the
                transformation itself takes the same tree boxed or unboxed. LAMB, Adafactor and rates of layers need
                the axes.
            groups: the parameters below the model's head from the bottom to the top, for rates of layers.

        Raises:
            UserError: a frozen name that no parameter has, layers of what is no stack, or rates of layers for a model
                without groups.
        """
        update = optax.chain(
            clip_by_global_norm(self.clip_norm),
            self.rule(self.schedule.rates(self.learning_rate, steps), params),
            scale_by_schedule_state(self.schedule),
        )
        if self.layer_decay != 1 or self.unfreeze_every:
            update = layer_rates(update, self.layer_decay, self.unfreeze_every, params, groups)
        update = freeze_layers(update, self.frozen, params)
        return freeze(self.averaged(update), self.frozen, params)


class ScheduleState(NamedTuple):
    """schedule: what the schedule remembers of evaluations (`Schedule.start`)."""

    schedule: Any


def scale_by_schedule_state(schedule: Schedule) -> optax.GradientTransformation:
    """Multiplies updates by what evaluations have made of the learning rate."""

    def init(params: Params) -> ScheduleState:
        return ScheduleState(schedule.start())

    def update(updates: Params, state: ScheduleState, params: Params = None) -> tuple[Params, ScheduleState]:
        factor = schedule.factor(state.schedule)
        return jax.tree.map(lambda leaf: leaf * factor, updates), state

    return optax.GradientTransformation(init, update)


def on_evaluation(optimizer: Optimizer, state: optax.OptState, value: float | jax.Array) -> optax.OptState:
    """The optimizer's state after an evaluation of the parameters; most rules ignore it.

    A pure function, which may be jitted: the result has the structure, shapes and dtypes of `state`.

    Args:
        state: of the transformation that `optimizer.build` gave.
        value: scalar, the metric of the evaluation, of which less is better.
    """
    value = jnp.asarray(value, jnp.float32)
    chex.assert_rank(value, 0)
    state = map_states(
        ScheduleState, lambda node: ScheduleState(optimizer.schedule.on_evaluation(node.schedule, value)), state
    )
    return optimizer.on_evaluation(state, value)


def learning_rate(optimizer: Optimizer, state: optax.OptState, steps: int, step: jax.Array) -> jax.Array:
    """float32 scalar: the learning rate of a step of a run of `steps`, evaluations so far included."""
    (found,) = _states(ScheduleState, state)
    rate = optimizer.schedule.rates(optimizer.learning_rate, steps)(step)
    return rate * optimizer.schedule.factor(found.schedule)


def gradient_norm(state: optax.OptState) -> jax.Array:
    """Global norm of the last gradient before clipping, frozen parameters left out, from the state of `build`."""
    return optax.tree.get(state, "global_norm")


def evaluated(state: optax.OptState, params: Params) -> Params:
    """The parameters that are evaluated and saved as the model's: averaged ones where a rule has begun to average.

    Args:
        params: the parameters that the rule updates, unboxed; returned as they are where nothing averages.
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


def averages(state: optax.OptState) -> bool:
    """Return whether a rule keeps a mean of the parameters, so that `evaluated` may give others than are updated."""
    return bool(_states(AverageState, state))


def _states(kind: type, state: optax.OptState) -> list[Any]:
    """The states of one kind within an optimizer's state."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def map_states(kind: type, function: Callable[[Any], Any], state: optax.OptState) -> optax.OptState:
    """An optimizer's state with `function(node)` in place of every state of one kind."""
    is_kind = lambda node: isinstance(node, kind)  # noqa: E731
    return jax.tree.map(lambda node: function(node) if is_kind(node) else node, state, is_leaf=is_kind)
