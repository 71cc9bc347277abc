"""The base class of all ways to compress a model while it is trained."""

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
    """A way to compress a model while it is trained. A subclass is a frozen dataclass of its settings."""

    verb: ClassVar[str] = ""
    """The command of `plmjax compress` that has it."""

    def trained(self, objective: Objective, steps: int) -> Objective:
        """Return the objective of the train step of a run of `steps` steps, around that of the experiment."""
        raise NotImplementedError(f"{type(self).__name__} must define `trained`.")

    def evaluated(self, objective: Objective, steps: int) -> Objective:
        """Return the objective of the evaluations of a run; by default that of the train step."""
        return self.trained(objective, steps)

    def rates(self, learning_rate: float) -> dict[str, Factor]:
        """Return path of parameters -> factor of their learning rate; 1 for all others (`scale_rates`)."""
        return {}

    def check(self, model: ModelConfig, objective: Objective) -> None:
        """Raise UserError for settings that do not fit the model or the objective."""

    def finished(self, params: Params, model: ModelConfig) -> tuple[Params, ModelConfig]:
        """Return the parameters and the config of the compressed model, from the last parameters of the run."""
        return params, model

    def undecayed(self) -> tuple[str, ...]:
        """Return words of paths of parameters without weight decay."""
        return ()
