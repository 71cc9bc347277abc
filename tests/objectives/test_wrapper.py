"""An objective around another one is that one, in everything that a subclass does not define itself."""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.objectives.objective import ConstantSources, LossInputs, Objective
from plmjax.objectives.wrapper import ADDED, ObjectiveWrapper
from tests.families import STEPS
from tests.third_party import experiments


class Adding(ObjectiveWrapper):
    """Has parameters of its own."""

    def extra_parameters(self, module: nn.Module, params: Any, key: jax.Array) -> dict[str, jax.Array]:
        return {"scores": jnp.ones(3)}


def test_an_objective_around_another_one_says_and_computes_the_same() -> None:
    """With a state from batch to batch, another one in evaluation, and parameters that the model does not get."""
    make, source = STEPS["transformer_xl"]
    small = {"n_layer": 1, "cutoffs": (), "div_val": 1}
    run = experiments.changed(experiments.without_dropout(make()), objective={"evaluation_mem_len": 2}, model=small)
    config, inner, source = run.model, run.objective, source(run.data)
    (phase,) = run.resolved_phases
    batch, key = next(iter(source.train(phase, 0))), jax.random.key(0)
    rows, length = batch["input_ids"].shape
    sources = ConstantSources(source.vocabulary, source.unigram_counts, list, lambda checkpoint, init: None)

    def answers(objective: Objective) -> dict[str, Any]:
        module = objective.module(config, Execution())
        carries = [
            nn.meta.unbox(start(config, rows, length, jnp.bfloat16))
            for start in (objective.initial_carry, objective.evaluation_carry)
        ]
        corrupted = objective.corrupt(batch, key, source.vocabulary)
        init = jax.jit(lambda: objective.init(module, key, corrupted, constants=(), carry=carries[0]))
        variables = nn.meta.unbox(init())
        params = objective.constrain(variables["params"])
        added = params.pop(ADDED, None)
        given = [LossInputs(params | ({} if added is None else {ADDED: added}), carry=carry) for carry in carries]
        sums = jax.jit(functools.partial(objective.sums, module, training=True))(given[0], corrupted, key)
        evaluated = jax.jit(functools.partial(objective.evaluation, module))(given[1], corrupted, key)
        arrays = params, carries, corrupted, sums, evaluated, objective.weights(corrupted), objective.targets(corrupted)
        said = objective.coefficients(), objective.target_term(corrupted), objective.longest(length)
        said += (objective.train_flops(config, batch), objective.parameter_groups(config))
        inputs = objective.model_inputs(corrupted) | objective.carry_inputs(carries[0])
        return {
            "arrays": (arrays, inputs), "said": said, "module": module,
            "constants": objective.constants(config, sources), "added": added,
        }  # fmt: skip

    expected, found = (answers(one) for one in (inner, Adding(inner)))
    assert expected.pop("added") is None
    np.testing.assert_array_equal(found.pop("added")["scores"], np.ones(3))
    chex.assert_trees_all_equal(found.pop("arrays"), expected.pop("arrays"))
    assert found == expected
