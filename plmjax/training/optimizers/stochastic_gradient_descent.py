"""Stochastic gradient descent, with momentum and with averaged parameters (ASGD, NT-ASGD)."""

import dataclasses
from typing import Any, ClassVar

import jax
import optax

from plmjax.errors import FROM_1, SHARE, check_choice, check_ranges
from plmjax.training.optimizers import averaging
from plmjax.training.optimizers.averaging import AverageState
from plmjax.training.optimizers.optimizer import map_states
from plmjax.training.optimizers.schedules import Constant, Schedule
from plmjax.training.optimizers.weight_decay import Decaying

Params = Any
AVERAGINGS = ("none", "always", "non-monotone")


@dataclasses.dataclass(frozen=True)
class StochasticGradientDescent(Decaying):
    """learning_rate * (gradient + weight_decay * parameter), with momentum.

    The model that is evaluated and saved has the mean of the parameters from the step on at which averaging begins:
    "always" is ASGD (Polyak and Juditsky 1992), "non-monotone" NT-ASGD (Merity et al., ICLR 2018, arXiv 1708.02182),
    which begins when the held-out loss is worse than it was more than `patience` evaluations ago.
    """

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.1
    """Peak learning rate."""
    schedule: Schedule = Constant()
    """Shape of the learning rate over the run; --optimizer.schedule NAME takes another one."""
    weight_decay: float = 0.0
    """L2 penalty: times the parameter it is added to the gradient, before the momentum."""
    decay_exclude: tuple[str, ...] = ()
    """Parameters whose path holds one of these words are not decayed."""
    momentum: float = 0.0
    """Decay of the running sum of gradients that is followed; 0 follows the gradient itself."""
    nesterov: bool = False
    """True if the momentum looks one step ahead."""
    averaging: str = "none"
    """none, always, or non-monotone: once the held-out loss stops falling."""
    average_share: float = 0.0
    """Smallest share of a step in the mean: 0 is the mean of all steps, 0.002 an exponential one of decay 0.998."""
    patience: int = 5
    """Evaluations that "non-monotone" leaves out when it asks whether an earlier one was better."""

    def __post_init__(self) -> None:
        """Checks the numbers and the kind of averaging."""
        super().__post_init__()
        check_ranges("optimizer", self, momentum=SHARE, average_share=SHARE, patience=FROM_1)
        check_choice("--optimizer.averaging", self.averaging, AVERAGINGS)

    @property
    def by_rows(self) -> bool:
        """Unless decay, momentum or the mean of the parameters changes with every step."""
        return not (self.weight_decay or self.momentum) and self.averaging == "none"

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        """Decay, momentum, learning rate."""
        return optax.chain(
            self.decay() if self.weight_decay else optax.identity(),
            optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity(),
            optax.scale_by_learning_rate(learning_rate),
        )

    def averaged(self, update: optax.GradientTransformation) -> optax.GradientTransformation:
        """`update`, with the mean of the parameters in its state unless `averaging` is none."""
        if self.averaging == "none":
            return update
        return averaging.average(update, self.averaging == "always", self.patience, self.average_share)

    def on_evaluation(self, state: optax.OptState, value: jax.Array) -> optax.OptState:
        """Begins averaging where `value` says so and `averaging` is non-monotone."""
        if self.averaging != "non-monotone":
            return state
        return map_states(AverageState, lambda node: averaging.on_evaluation(node, value), state)
