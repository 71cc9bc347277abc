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
from plmjax.layers.words.embeddings import Embedding
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, cross_entropy
from plmjax.training import carries, loop
from plmjax.training.checkpoints import checkpoints
from tests.third_party import experiments
from tests.third_party.source import ChainSource
from tests.training import built


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
        mutable = ["statistics"] if training else ["none"]
        logits, after = module.apply(loss_inputs.variables, **inputs, deterministic=not training, mutable=mutable)
        loss = jnp.sum(weights * cross_entropy(logits, ids))
        collections = nn.meta.unbox(after) if training else loss_inputs.collections
        return LossSums({"next_token": loss}, {}, collections=collections)


@pytest.mark.nightly
@pytest.mark.parametrize("accumulation", [1, 4])
def test_collections_are_updated_by_every_microbatch_and_kept(accumulation: int, tmp_path: Path) -> None:
    training = {"steps": 4, "evaluation_batches": 2, "accumulation": accumulation}
    run = experiments.changed(experiments.gpt2(), training=training, checkpoint={"every": 2})
    run = dataclasses.replace(run, objective=CountedNextToken())
    source = ChainSource(run.data)
    result = loop.train(run, tmp_path, source, tokenizer={})
    tokens = np.concatenate([batch["input_ids"] for batch in source.train(run.resolved_phases[0], 0)])
    seen = np.bincount(tokens.ravel(), minlength=64)
    np.testing.assert_array_equal(result.state.collections["statistics"]["seen"], seen)  # evaluations count nothing
    loss_inputs = checkpoints.load_loss_inputs(checkpoints.find(tmp_path), result.program.state)
    chex.assert_trees_all_equal(jax.device_get(loss_inputs.collections), jax.device_get(result.state.collections))
    before = checkpoints.load_loss_inputs(checkpoints.find(tmp_path / "checkpoints" / "2"), result.program.state)
    assert 0 < float(before.collections["statistics"]["seen"].sum()) < seen.sum()


def test_rows_that_begin_anew_begin_with_the_initial_carry() -> None:
    carry = (jnp.full((2, 4, 3), 7.0), {"memory": jnp.full((4, 5), 7.0), "shared": jnp.full(3, 7.0)})
    axes = (("layers", "batch", "embed"), {"memory": ("batch", None), "shared": (None,)})
    first = jax.tree.map(lambda x, names: nn.LogicallyPartitioned(jnp.zeros_like(x), names), carry, axes)
    reset = carries.reset(lambda: first)
    states, others = reset(carry, {carries.IS_FIRST: jnp.array([1, 0, 0, 1])})
    np.testing.assert_array_equal(states[0, :, 0], [0, 7, 7, 0])
    np.testing.assert_array_equal(others["memory"][:, 0], [0, 7, 7, 0])
    np.testing.assert_array_equal(others["shared"], [7, 7, 7])
    chex.assert_trees_all_equal(reset(carry, {}), carry)


def test_an_evaluation_of_rows_that_begin_anew_forgets_the_carry() -> None:
    """Its loss is that of a fresh carry, whatever was carried before; nor does dropout's key change it."""
    run = experiments.recurrent()
    program = built.program(run)
    phase, state = program.phase, program.initialize(0)
    batch = dict(next(ChainSource(run.data).train(phase, 3)))
    losses = {}
    for begins in (0, 1):
        for carried in (0.0, 0.9):
            loss_inputs = state.loss_inputs.replace(carry=jax.tree.map(lambda x, value=carried: x + value, state.carry))
            fields = batch | {"is_first": np.full(phase.batch_size, begins, np.int32)}
            found = [program.evaluate(loss_inputs, fields, jax.random.key(seed))[1]["loss"][0] for seed in (0, 1)]
            assert found[0] == found[1] and run.model.dropout > 0
            losses[begins, carried] = float(found[0])
    assert losses[1, 0.0] == losses[1, 0.9] == losses[0, 0.0] != losses[0, 0.9]
