"""Optimizers: one class for each update rule, with the settings of that rule only."""

from plmjax.training.optimizers.adafactor import Adafactor
from plmjax.training.optimizers.adagrad import Adagrad, GloveAdagrad
from plmjax.training.optimizers.adam import AdamW, BertAdamW
from plmjax.training.optimizers.lamb import Lamb
from plmjax.training.optimizers.muon import Muon
from plmjax.training.optimizers.optimizer import (
    Optimizer,
    evaluation_params,
    gradient_norm,
    has_average,
    learning_rate,
    on_evaluation,
)
from plmjax.training.optimizers.stable_adamw import StableAdamW
from plmjax.training.optimizers.stochastic_gradient_descent import StochasticGradientDescent

__all__ = [
    "Adafactor",
    "Adagrad",
    "AdamW",
    "BertAdamW",
    "GloveAdagrad",
    "Lamb",
    "Muon",
    "Optimizer",
    "StableAdamW",
    "StochasticGradientDescent",
    "evaluation_params",
    "gradient_norm",
    "has_average",
    "learning_rate",
    "on_evaluation",
]
