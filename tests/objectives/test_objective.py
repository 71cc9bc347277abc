"""Rules for every objective: rows are corrupted by draws of their own, modules get the carry, and wrappers pass on."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import ConstantSources, LossInputs, Objective, apply_and_collect
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.wrapper import ADDED, ObjectiveWrapper
from tests.families import STEPS
from tests.third_party import experiments

# At T5's own rate a row of 16 tokens has one span, which always ends it.
SETTINGS = {"bert": {}, "electra": {}, "t5": {"rate": 0.5}}


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_rows_are_corrupted_apart(name: str) -> None:
    """By another key otherwise than by the first one, too."""
    make, source = STEPS[name]
    run = experiments.changed(make(), objective=SETTINGS[name])
    source, (phase, *_) = source(run.data), run.resolved_phases
    batch = next(source.train(phase, 0))
    equal = {field: np.repeat(array[:1], len(array), axis=0) for field, array in batch.items()}
    corrupt = jax.jit(lambda key: run.objective.corrupt(equal, key, source.vocabulary)["input_ids"])
    first, second = (np.asarray(corrupt(jax.random.key(seed))) for seed in range(2))
    for found in (first, second):
        assert len({row.tobytes() for row in found}) > len(found) // 2
    assert (first != second).any(axis=1).sum() > len(first) // 2


class Told(nn.Module):
    """Says what it is given, and counts its calls."""

    @nn.compact
    def __call__(self, input_ids: jax.Array, memory: jax.Array, *, deterministic: bool) -> tuple:
        calls = self.variable("state", "calls", lambda: jnp.zeros((), jnp.int32))
        if self.is_mutable_collection("state"):
            calls.value += 1
        return input_ids, memory, deterministic, {name: self.make_rng(name) for name in RANDOM if self.has_rng(name)}


RANDOM = ("dropout", "sampling")


class OfTold(Objective):
    def model_inputs(self, batch):
        return {"input_ids": batch["input_ids"]}

    def carry_inputs(self, carry):
        return {"memory": carry}


def test_dropout_is_drawn_in_training_alone_and_another_key_than_that_of_samples() -> None:
    """Further collections may change in training alone."""
    key, batch = jax.random.key(7), {"input_ids": 3, "next_ids": 4}
    loss_inputs = LossInputs({}, carry="before", collections={"state": {"calls": jnp.asarray(1)}})
    (*given, drawn), after = apply_and_collect(OfTold(), Told(), loss_inputs, batch=batch, key=key, training=True)
    assert given == [3, "before", False] and after["state"]["calls"] == 2 and drawn.keys() == set(RANDOM)
    (*given, sampled), kept = apply_and_collect(OfTold(), Told(), loss_inputs, batch=batch, key=key, training=False)
    assert given == [3, "before", True] and kept["state"]["calls"] == 1 and sampled.keys() == {"sampling"}
    assert sampled["sampling"] == drawn["sampling"] != drawn["dropout"]


ROW = ("input_ids", "segment_ids", "positions")
INPUTS = {
    NextToken(): ROW,
    PermutationLanguageModel(): ("input_ids", "token_type_ids", "ranks", "target_positions", "backwards"),
    SequenceToSequence(): (*ROW, *(f"decoder_{name}" for name in ROW)),
    SequenceClassification(("a", "b")): (*ROW, "characters", "token_type_ids", "cls_positions"),
}


@pytest.mark.parametrize("objective", INPUTS, ids=[type(objective).__name__ for objective in INPUTS])
def test_a_model_gets_each_of_its_inputs_and_no_target(objective: Objective) -> None:
    """Types, positions and the rest are optional in a batch, so that no error would tell of a lost one."""
    names = {name for inputs in INPUTS.values() for name in inputs}
    targets = ("labels", "original_ids", "next_ids", "next_weights", "masked_weights", "row_ids", "is_first")
    batch = {name: np.full((2, 4), number) for number, name in enumerate((*sorted(names), *targets))}
    found = objective.model_inputs(batch)
    assert all(found[name] is batch[name] for name in INPUTS[objective])
    more = {"attention_mask", "reuse_length"} if isinstance(objective, PermutationLanguageModel) else set()
    assert found.keys() - set(INPUTS[objective]) == more
    if more:
        assert found["attention_mask"] is batch["segment_ids"] and found["reuse_length"] == 2


class Adding(ObjectiveWrapper):
    """Has parameters of its own."""

    def extra_parameters(self, module: nn.Module, params: Any, key: jax.Array) -> dict[str, jax.Array]:
        return {"scores": jnp.ones(3)}


def test_an_objective_around_another_one_says_and_computes_the_same() -> None:
    """With a state from batch to batch, another one in evaluation, and parameters that the model does not get."""
    make, source = STEPS["transformer_xl"]
    small = {"n_layer": 1, "cutoffs": (), "div_val": 1}
    run = experiments.changed(experiments.without_dropout(make()), objective={"evaluation_mem_len": 2}, model=small)
    config, source = run.model, source(run.data)
    batch, key = next(iter(source.train(run.resolved_phases[0], 0))), jax.random.key(0)
    rows, length = batch["input_ids"].shape
    sources = ConstantSources(source.vocabulary, source.unigram_counts, list, lambda checkpoint, init: None)

    def answers(objective: Objective) -> tuple[Any, list[Any]]:
        """The parameters that it adds; what it says, and the programs of its sums."""
        module, sizes = objective.module(config, Execution()), (config, rows, length, jnp.bfloat16)
        carries = nn.meta.unbox((objective.initial_carry(*sizes), objective.evaluation_carry(*sizes)))
        corrupted = objective.corrupt(batch, key, source.vocabulary)
        init = functools.partial(objective.init, module, key, corrupted, constants=(), carry=carries[0])
        shapes = jax.eval_shape(lambda: objective.constrain(nn.meta.unbox(init())["params"]))
        params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        runs = functools.partial(objective.sums, training=True), objective.evaluation
        programs = [
            jax.make_jaxpr(lambda carry, run=run: run(module, LossInputs(params, carry=carry), corrupted, key))(carry)
            for run, carry in zip(runs, carries, strict=True)
        ]
        said = [objective.coefficients(), objective.target_term(corrupted), objective.longest(length), module]
        said += [objective.train_flops(config, batch), objective.parameter_groups(config)]
        said += [objective.constants(config, sources), *(re.sub(" at 0x[0-9a-f]+", "", str(each)) for each in programs)]
        arrays = [carries, corrupted, objective.weights(corrupted), objective.targets(corrupted)]
        arrays += [objective.model_inputs(corrupted), objective.carry_inputs(carries[0])]
        added = shapes.pop(ADDED, None)
        return added, [*said, jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), arrays), shapes]

    (of_none, expected), (added, found) = (answers(one) for one in (run.objective, Adding(run.objective)))
    assert of_none is None and added["scores"].shape == (3,)
    assert found == expected
