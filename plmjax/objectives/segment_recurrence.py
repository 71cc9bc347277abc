"""The next token with a memory that is carried from row to row, for models such as Transformer-XL and Adaptive-Span.

Rows are such as `ContiguousStreams` gives. No gradient passes from one row to the row before it. The model's config
makes the memory before a text (`memory`), a `Memory` of plmjax/models/families/segments.py.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.models.families.segments import Memory
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, apply


@dataclasses.dataclass(frozen=True)
class SegmentRecurrence(NextToken):
    """Mean nats of each token given the tokens before it in its row and in the memory."""

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the ids, a mask of the tokens to read, and the starts of documents if these are separate."""
        optional = {"starts": batch["starts"]} if "starts" in batch else {}
        return {"input_ids": batch["input_ids"], "attention_mask": _read(batch), **optional}

    def carry_inputs(self, carry: Memory) -> dict[str, Any]:
        return {"cache": carry}

    def initial_carry(
        self, config: Any, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Memory:
        memory = config.memory(batch_size, dtype)
        return Memory(
            nn.LogicallyPartitioned(memory.hidden, ("layers", "batch", None, "embed")),
            nn.LogicallyPartitioned(memory.documents, ("batch", None)),
        )

    def evaluation_carry(
        self, config: Any, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Memory:
        return self.initial_carry(self.evaluation_config(config), batch_size, sequence_length, dtype)

    def evaluation_config(self, config: Any) -> Any:
        """Return the config with the settings of an evaluation; by default those of training."""
        return config

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        ids, weights = self.targets(batch)
        outputs = apply(self, self._reader(module, training), loss_inputs, batch=batch, key=key, training=training)
        loss, likeliest = outputs.scores.weighted_cross_entropy(ids, weights)
        metrics = {"accuracy": (jnp.sum(weights * likeliest), jnp.sum(weights))}
        return LossSums({"next_token": loss}, metrics, outputs.cache)

    def score(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        return super().score(self._reader(module, training), loss_inputs, batch, key, training=training)

    def _reader(self, module: nn.Module, training: bool) -> nn.Module:
        return module if training else module.clone(config=self.evaluation_config(module.config))


def _read(batch: Batch) -> jax.Array:
    """Return the tokens to read, bool [B T].

    Tokens that a row repeats from the row before are already in the memory.
    """
    real = batch["segment_ids"] > 0
    return real & ((batch["next_weights"] > 0) | (batch["is_first"][:, None] > 0)) if "is_first" in batch else real
