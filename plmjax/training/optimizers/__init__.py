"""Update rules, one class each, with only the settings that each has."""

from plmjax.training.optimizers.adafactor import Adafactor
from plmjax.training.optimizers.adagrad import Adagrad, GloveAdagrad
from plmjax.training.optimizers.adam import AdamW, BertAdamW
from plmjax.training.optimizers.lamb import Lamb
from plmjax.training.optimizers.optimizer import (
    Optimizer,
    averages,
    evaluated,
    gradient_norm,
    learning_rate,
    on_evaluation,
)
from plmjax.training.optimizers.stochastic_gradient_descent import StochasticGradientDescent

__all__ = [
    "Adafactor",
    "Adagrad",
    "AdamW",
    "BertAdamW",
    "GloveAdagrad",
    "Lamb",
    "Optimizer",
    "StochasticGradientDescent",
    "averages",
    "evaluated",
    "gradient_norm",
    "learning_rate",
    "on_evaluation",
]
