"""Collections of a module that a step updates."""

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
from plmjax.experiment import Experiment
from plmjax.layers.words.embeddings import Embedding
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, cross_entropy
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from tests.third_party import experiments
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
def test_collections_are_updated_by_every_microbatch_and_kept(tmp_path: Path) -> None:
    run = experiments.changed(counted(accumulation=4), checkpoint={"every": 2})
    source = ChainSource(run.data)
    result = loop.train(run, tmp_path, source, tokenizer={})
    tokens = np.concatenate([batch["input_ids"] for batch in source.train(run.resolved_phases[0], 0)])
    seen = np.bincount(tokens.ravel(), minlength=64)
    np.testing.assert_array_equal(result.state.collections["statistics"]["seen"], seen)  # evaluations count nothing
    loss_inputs = checkpoints.load_loss_inputs(checkpoints.find(tmp_path), result.program.state)
    chex.assert_trees_all_equal(jax.device_get(loss_inputs.collections), jax.device_get(result.state.collections))
    before = checkpoints.load_loss_inputs(checkpoints.find(tmp_path / "checkpoints" / "2"), result.program.state)
    assert 0 < float(before.collections["statistics"]["seen"].sum()) < seen.sum()
