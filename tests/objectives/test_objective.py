"""What holds for every objective: rows are corrupted each by draws of its own, and modules get the carry."""

import chex
import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.objectives.objective import LossInputs, apply
from plmjax.training import phases
from tests.families import STEPS
from tests.strangers import experiments

# At T5's own rate a row of 16 tokens has one span, which always ends it.
SETTINGS = {"bert": {}, "albert": {}, "electra": {}, "t5": {"rate": 0.5}}


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_rows_are_corrupted_apart(name: str) -> None:
    """By another key otherwise than by the first one, too."""
    make, source = STEPS[name]
    run = experiments.changed(make(), objective=SETTINGS[name])
    source, (phase, *_) = source(run.data), phases.resolve(run)
    batch = next(source.train(phase, 0))
    equal = {field: np.repeat(array[:1], len(array), axis=0) for field, array in batch.items()}
    corrupt = jax.jit(lambda key: run.objective.corrupt(equal, key, source.vocabulary)["input_ids"])
    first, second = (np.asarray(corrupt(jax.random.key(seed))) for seed in range(2))
    for found in (first, second):
        assert len({row.tobytes() for row in found}) > len(found) // 2
    assert (first != second).any(axis=1).sum() > len(first) // 2


def test_a_module_is_given_the_carry() -> None:
    run = experiments.recurrent()
    objective, module = run.objective, run.objective.module(run.model, Execution())
    batch = {"input_ids": np.ones((2, 3), np.int32)}
    carry = tuple(np.full((run.model.depth, 2, run.model.width), value, np.float32) for value in (0.5, -0.5))
    key = jax.random.key(0)
    loss_inputs = LossInputs(nn.meta.unbox(objective.init(module, key, batch, (), carry))["params"], carry=carry)
    found = apply(objective, module, loss_inputs, batch, key, training=False)
    expected = module.apply(loss_inputs.variables, batch["input_ids"], carry, deterministic=True)
    chex.assert_trees_all_equal(found, expected)
    other = apply(objective, module, loss_inputs.replace(carry=carry[::-1]), batch, key, training=False)
    assert not np.allclose(found[0], other[0])
