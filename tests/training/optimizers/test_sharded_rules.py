"""A step of every rule is the same on one device and on a mesh that cuts parameters and optimizer state."""

import dataclasses

import chex
import pytest

from plmjax.training import optimizers
from plmjax.training.optimizers import Adafactor, Adagrad, StochasticGradientDescent
from plmjax.training.optimizers.schedules import Linear
from tests.families import STEPS
from tests.third_party import experiments
from tests.training.built import trained

RULES = {
    "Adagrad": Adagrad(learning_rate=1e-2, initial_accumulator=0.1),
    "averaged": StochasticGradientDescent(momentum=0.9, averaging="always"),
    "Adafactor": Adafactor(factored_from=4, epsilon=1e-6),
}


# The state is cut as the parameters are, as in test_step.py; 5 s each: pytest -m nightly tests/training/optimizers
@pytest.mark.nightly
@pytest.mark.parametrize("rule", RULES)
def test_sharded_equals_unsharded(rule):
    """Also the mean of the parameters, which is evaluated."""
    run = experiments.changed(experiments.without_dropout(experiments.gpt2()), training={"steps": 2})
    run = dataclasses.replace(run, optimizer=RULES[rule])
    states = [trained(run, sizes)[1] for sizes in ((2, 2, 2), (1, 1, 1))]
    found = [(one.params, optimizers.evaluation_params(one.optimizer_state, one.params)) for one in states]
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)])
def test_rates_of_layers_are_the_same_on_a_mesh(mesh):
    make, source = STEPS["classification"]
    optimizer = {"layer_decay": 0.7, "unfreeze_every": 1, "epsilon": 1e-3, "schedule": Linear()}
    run = experiments.without_dropout(experiments.changed(make(), optimizer=optimizer, training={"steps": 4}))
    found = [trained(run, sizes, source)[1].params for sizes in (mesh, (1, 1, 1))]
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-5)
