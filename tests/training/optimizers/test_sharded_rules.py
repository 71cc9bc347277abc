"""A step of every rule is the same on one device and on a mesh that cuts parameters and optimizer state."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from plmjax.parallel import mesh as meshes
from plmjax.training import feed, optimizers
from plmjax.training import program as programs
from plmjax.training.optimizers import Adafactor, Adagrad, StochasticGradientDescent
from tests.third_party import experiments
from tests.third_party.source import ChainSource

RULES = {
    "Adagrad": Adagrad(learning_rate=1e-2, initial_accumulator=0.1),
    "averaged": StochasticGradientDescent(momentum=0.9, averaging="always"),
    "Adafactor": Adafactor(factored_from=4, epsilon=1e-6),
}


def trained(rule: optimizers.Optimizer, sizes: tuple[int, int, int]):
    """(parameters, what is evaluated) after the steps of a short run."""
    run = experiments.changed(
        experiments.without_dropout(experiments.gpt2()),
        training={"steps": 2},
        mesh=dict(zip(meshes.AXES, sizes, strict=True)),
    )
    run = dataclasses.replace(run, optimizer=rule)
    (phase,) = run.resolved_phases
    batches = ChainSource(run.data)
    mesh = meshes.make(run.mesh, jax.devices()[: int(np.prod(sizes))])
    built = programs.build(run, phase, mesh, batches.vocabulary, batches.batch)
    state = built.initialize(0)
    for batch in feed.on_device(batches.train(phase, 0, feed.local_rows(built.batch)), built.batch):
        state, _ = built.train(state, batch)
    return jax.device_get((state.params, optimizers.evaluated(state.optimizer_state, state.params)))


# The state is cut as the parameters are, as in test_step.py; 5 s each: pytest -m nightly tests/training/optimizers
@pytest.mark.nightly
@pytest.mark.parametrize("rule", RULES)
def test_sharded_equals_unsharded(rule):
    chex.assert_trees_all_close(trained(RULES[rule], (2, 2, 2)), trained(RULES[rule], (1, 1, 1)), rtol=1e-4, atol=1e-5)
