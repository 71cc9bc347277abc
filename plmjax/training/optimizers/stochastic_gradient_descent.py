"""Stochastic gradient descent, with momentum and with averaged parameters (ASGD, NT-ASGD)."""

import dataclasses
from typing import Any, ClassVar

import jax
import optax

from plmjax.errors import FRACTION, FROM_1, check_choice, check_ranges
from plmjax.training.optimizers import averaging
from plmjax.training.optimizers.averaging import AverageState
from plmjax.training.optimizers.optimizer import map_states
from plmjax.training.optimizers.schedules import Constant, Schedule
from plmjax.training.optimizers.weight_decay import Decaying

Params = Any
AVERAGINGS = ("none", "always", "non-monotone")


@dataclasses.dataclass(frozen=True)
class StochasticGradientDescent(Decaying):
    """SGD: update = learning_rate * (gradient + weight_decay * parameter), with momentum.

    Once averaging has started, the mean of the parameters is evaluated and saved. "always" is ASGD (Polyak and Juditsky
    1992). "non-monotone" is NT-ASGD (Merity et al., ICLR 2018, arXiv 1708.02182): averaging starts when the held-out
    loss is worse than the best one before the last `patience` evaluations.
    """

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.1
    """Peak learning rate."""
    schedule: Schedule = Constant()
    """Shape of the learning rate over the run; --optimizer.schedule NAME takes another one."""
    weight_decay: float = 0.0
    """L2 penalty: weight_decay * parameter is added to the gradient, before momentum; 0 for none."""
    decay_exclude: tuple[str, ...] = ()
    """Parameters whose path contains one of these words are not decayed."""
    momentum: float = 0.0
    """Decay of the running sum of gradients; 0 for no momentum."""
    nesterov: bool = False
    """True for Nesterov momentum."""
    averaging: str = "none"
    """none, always, or non-monotone: from the time that the held-out loss stops falling."""
    average_fraction: float = 0.0
    """Smallest weight of a step in the mean: 0 is the mean of all steps, 0.002 an exponential mean of decay 0.998."""
    patience: int = 5
    """Number of last evaluations with which "non-monotone" does not compare a new one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, momentum=FRACTION, average_fraction=FRACTION, patience=FROM_1)
        check_choice("--optimizer.averaging", self.averaging, AVERAGINGS)

    @property
    def by_rows(self) -> bool:
        """Return False if weight decay, momentum or averaging changes all rows at every step."""
        return not (self.weight_decay or self.momentum) and self.averaging == "none"

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        return optax.chain(
            self.decay(params) if self.weight_decay else optax.identity(),
            optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity(),
            optax.scale_by_learning_rate(learning_rate),
        )

    def with_average(self, update: optax.GradientTransformation) -> optax.GradientTransformation:
        if self.averaging == "none":
            return update
        return averaging.average(update, self.averaging == "always", self.patience, self.average_fraction)

    def on_evaluation(self, state: optax.OptState, value: jax.Array) -> optax.OptState:
        if self.averaging != "non-monotone":
            return state
        return map_states(AverageState, lambda node: averaging.on_evaluation(node, value), state)
