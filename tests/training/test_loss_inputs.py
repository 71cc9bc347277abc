"""Inputs of a loss besides parameters: collections that a step updates, and carries that are reset."""

import dataclasses
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.layers.words.embeddings import Embedding
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, cross_entropy
from plmjax.parallel import mesh as meshes
from plmjax.training import carries, evaluation, loop
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints
from tests.third_party import experiments
from tests.third_party.recurrent import NextTokenOfStream, RecurrentConfig
from tests.third_party.source import ChainSource


class Counting(nn.Module):
    """Logits of the next token, and how often each token has been seen in training, float32 [V]."""

    @nn.compact
    def __call__(self, input_ids: jax.Array, *, deterministic: bool) -> jax.Array:
        words = Embedding(64, 16, "vocab", nn.initializers.normal(0.1), name="words")
        seen = self.variable("statistics", "seen", lambda: nn.LogicallyPartitioned(jnp.zeros(64), ("vocab",)))
        if not deterministic:
            seen.value = seen.value + jnp.zeros(64).at[input_ids.reshape(-1)].add(1.0)
        return words.attend(words(input_ids))


@dataclasses.dataclass(frozen=True)
class CountedNextToken(NextToken):
    """The next token's nats; the module's statistics travel from step to step."""

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return Counting()

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {"input_ids": batch["input_ids"]}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        ids, weights = self.targets(batch)
        inputs = self.model_inputs(batch)
        logits, after = module.apply(
            loss_inputs.variables,
            **inputs,
            deterministic=not training,
            mutable=["statistics"] if training else ["none"],
        )
        loss = jnp.sum(weights * cross_entropy(logits, ids))
        collections = nn.meta.unbox(after) if training else loss_inputs.collections
        return LossSums({"next_token": loss}, {}, collections=collections)


def counted(**training: Any) -> Experiment:
    run = dataclasses.replace(experiments.gpt2(), objective=CountedNextToken())
    return experiments.changed(run, training={"steps": 4, "evaluation_batches": 2} | training)


@pytest.mark.nightly
@pytest.mark.parametrize("accumulation", [1, 4])
def test_collections_are_updated_by_every_microbatch_and_kept(accumulation: int, tmp_path: Path) -> None:
    run = experiments.changed(counted(accumulation=accumulation), checkpoint={"every": 2})
    source = ChainSource(run.data)
    result = loop.train(run, tmp_path, source, {})
    tokens = np.concatenate([batch["input_ids"] for batch in source.train(run.resolved_phases[0], 0)])
    seen = np.bincount(tokens.ravel(), minlength=64)
    np.testing.assert_array_equal(result.state.collections["statistics"]["seen"], seen)  # evaluations count nothing
    loss_inputs = checkpoints.load_loss_inputs(checkpoints.find(tmp_path), result.program.state)
    chex.assert_trees_all_equal(jax.device_get(loss_inputs.collections), jax.device_get(result.state.collections))
    before = checkpoints.load_loss_inputs(checkpoints.find(tmp_path / "checkpoints" / "2"), result.program.state)
    assert 0 < float(before.collections["statistics"]["seen"].sum()) < seen.sum()


@dataclasses.dataclass(frozen=True)
class LongerMemory(NextTokenOfStream):
    """Its evaluation carries an array more, whose size is that of its rows."""

    def evaluation_carry(
        self, config: RecurrentConfig, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Any:
        state = super().initial_carry(config, batch_size, sequence_length)
        rows = nn.LogicallyPartitioned(jnp.zeros((batch_size, sequence_length)), ("batch", None))
        return {"state": state, "rows": rows}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        if training:
            return super().sums(module, loss_inputs, batch, key, training=True)
        within = loss_inputs.replace(carry=loss_inputs.carry["state"])
        sums = super().sums(module, within, batch, key, training=False)
        rows = loss_inputs.carry["rows"] + 1
        metrics = sums.metrics | {"rows": (jnp.sum(rows), jnp.float32(rows.size))}
        return sums.replace(metrics=metrics, carry={"state": sums.carry, "rows": rows})


@pytest.mark.nightly
def test_an_evaluation_has_a_carry_a_batch_and_a_length_of_its_own(tmp_path: Path) -> None:
    run = dataclasses.replace(experiments.recurrent(), objective=LongerMemory())
    run = experiments.changed(run, training={"steps": 2, "evaluation_batch_size": 8}, mesh={"data": 4, "tensor": 2})
    run = experiments.changed(run, training={"evaluation_sequence_length": 24, "evaluation_batches": 2})
    source = ChainSource(run.data)
    result = loop.train(run, tmp_path, source, {})
    program = result.program
    assert program.batch["input_ids"].shape == (16, 16) and program.evaluation_batch["input_ids"].shape == (8, 24)
    carry = program.start_evaluation_carry()
    assert {leaf.shape for leaf in jax.tree.leaves(carry)} == {(2, 8, 16), (8, 24)}
    assert result.metrics["eval/rows"] == 1.5  # two of three batches, of which the second counts 2
    sizes = experiments.changed(run, training={"evaluation_batch_size": 6})
    with pytest.raises(UserError, match=r"Expected --training.evaluation_batch_size to divide by 4 devices .* found 6"):
        mesh = meshes.make(run.mesh, jax.devices())
        programs.build(sizes, sizes.resolved_phases[0], mesh, source.vocabulary, source.batch)


def test_rows_that_begin_anew_begin_with_the_initial_carry() -> None:
    carry = (jnp.full((2, 4, 3), 7.0), {"memory": jnp.full((4, 5), 7.0), "shared": jnp.full(3, 7.0)})
    axes = (("layers", "batch", "embed"), {"memory": ("batch", None), "shared": (None,)})
    first = jax.tree.map(lambda x, names: nn.LogicallyPartitioned(jnp.zeros_like(x), names), carry, axes)
    reset = carries.reset(lambda: first)
    states, others = reset(carry, {carries.BEGINS: jnp.array([1, 0, 0, 1])})
    np.testing.assert_array_equal(states[0, :, 0], [0, 7, 7, 0])
    np.testing.assert_array_equal(others["memory"][:, 0], [0, 7, 7, 0])
    np.testing.assert_array_equal(others["shared"], [7, 7, 7])
    chex.assert_trees_all_equal(reset(carry, {}), carry)


def test_an_evaluation_of_rows_that_begin_anew_forgets_the_carry() -> None:
    """Its loss is that of a fresh carry, whatever was carried before; nor does dropout's key change it."""
    run = experiments.recurrent()
    source = ChainSource(run.data)
    (phase,) = run.resolved_phases
    program = programs.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), source.vocabulary, source.batch)
    state = program.initialize(0)
    batch = dict(next(source.train(phase, 3)))
    losses = {}
    for begins in (0, 1):
        for carried in (0.0, 0.9):
            loss_inputs = state.loss_inputs.replace(carry=jax.tree.map(lambda x, value=carried: x + value, state.carry))
            fields = batch | {"begins": np.full(phase.batch_size, begins, np.int32)}
            found = [program.evaluate(loss_inputs, fields, jax.random.key(seed))[1]["loss"][0] for seed in (0, 1)]
            assert found[0] == found[1] and run.model.dropout > 0
            losses[begins, carried] = float(found[0])
    assert losses[1, 0.0] == losses[1, 0.9] == losses[0, 0.0] != losses[0, 0.9]


def test_materials_are_asked_for_where_there_are_constants() -> None:
    run = experiments.word2vec()
    source = ChainSource(run.data)
    (phase,) = run.resolved_phases
    program = programs.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), source.vocabulary, source.batch)
    with pytest.raises(ValueError, match="Expected sources for the constants of NegativeSampling, found none"):
        program.initialize(0)
    assert program.state.constants["noise"].shape == (64,)
    assert "unigram_loss" in evaluation.means(program, {})
