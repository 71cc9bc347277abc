"""The causal language model: each token is predicted from the tokens before it."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.objectives.capabilities import ScoresNextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply


@dataclasses.dataclass(frozen=True)
class NextToken(ScoresNextToken, Objective):
    """Mean nats of the next token, for rows such as `Chunks` gives.

    The module returns `scores` (`plmjax.contracts.scores.TokenScores`); it may be any decoder.
    """

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {name: batch[name] for name in ("input_ids", "positions", "segment_ids")}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of predictions, or a small number above 0 for rows without targets."""
        return {"next_token": jnp.maximum(jnp.sum(batch["next_weights"]), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        ids, weights = self.targets(batch)
        scores = apply(self, module, loss_inputs, batch=batch, key=key, training=training).scores
        loss, likeliest = scores.weighted_cross_entropy(ids, weights)
        return LossSums(
            {"next_token": loss},
            {"accuracy": (jnp.sum(weights * likeliest), jnp.sum(weights))},
        )

    def score(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        return apply(self, module, loss_inputs, batch=batch, key=key, training=training).scores.cross_entropy(
            batch["next_ids"]
        )

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["next_ids"], batch["next_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        rows, length = batch["input_ids"].shape
        return config.train_flops(rows, length, length)
