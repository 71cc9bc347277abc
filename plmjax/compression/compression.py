"""The base class of all methods that compress a model while it is trained."""

import dataclasses
from typing import ClassVar

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.experiment import Choice
from plmjax.objectives.objective import Objective
from plmjax.training.optimizers.layer_rates import Factor

Params = dict[str, np.ndarray]
"""Dict from path (`bert/encoder/layers/attention/query/kernel`) to the parameter."""


@dataclasses.dataclass(frozen=True)
class Compression(Choice):
    """A method that compresses a model while it is trained. A subclass is a frozen dataclass of its settings."""

    verb: ClassVar[str] = ""
    """The command of `plmjax compress` that offers the method."""

    def training_objective(self, objective: Objective, steps: int) -> Objective:
        """Wrap the objective of the experiment for the train step of a run of `steps` steps."""
        raise NotImplementedError(f"{type(self).__name__} must define `training_objective`.")

    def evaluation_objective(self, objective: Objective, steps: int) -> Objective:
        """Wrap the objective of the experiment for evaluations; by default as for training."""
        return self.training_objective(objective, steps)

    def rate_factors(self, learning_rate: float) -> dict[str, Factor]:
        """Return path of parameters -> factor of their learning rate; 1 for all others (`scale_rates`)."""
        return {}

    def check(self, model: ModelConfig, objective: Objective) -> None:
        """Raise UserError for settings that do not fit the model or the objective."""

    def finish(self, params: Params, model: ModelConfig) -> tuple[Params, ModelConfig]:
        """Return the parameters and the config of the compressed model, from the last parameters of the run."""
        return params, model

    def without_weight_decay(self) -> tuple[str, ...]:
        """Return parts of the paths of parameters that have no weight decay."""
        return ()
