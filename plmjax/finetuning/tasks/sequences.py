"""The base class of tasks with an output for whole sequences: the summary position, and an auxiliary loss.

A model that reads from left to right may continue to learn next-token prediction while it learns a task (Radford et al.
2018, section 3.2). The loss is the loss of the task plus `language_model` times

    mean over sequences of  mean over the tokens of a sequence of  nats of the next token

The special tokens of the row are predicted like any other (openai/finetune-transformer-lm train.py, `model`).
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from plmjax.contracts.scores import TokenScores
from plmjax.errors import FROM_0, UserError, check_ranges
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.objectives.objective import Batch, LossSums

TERM = "next_token"


@dataclasses.dataclass(frozen=True)
class SequenceObjective(TaskObjective):
    """Base class of objectives for whole sequences, which use the system's own head for sequences."""

    language_model: float = dataclasses.field(default=0.0, kw_only=True)
    """Factor of the next-token loss beside the task's own, 0.5 in GPT's paper; 0 leaves it out."""

    def __post_init__(self) -> None:
        check_ranges("objective", self, language_model=FROM_0)

    def check_model(self, config: Any) -> None:
        """Raise UserError if the next-token loss is set but the model does not predict the next token."""
        if self.language_model and "scores" not in config.system.returns:
            raise UserError(
                f"Expected a model that reads from left to right for --objective.language_model "
                f"{self.language_model:g}, found {config.system}; set it to 0, or fine-tune a GPT."
            )

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return super().model_inputs(batch) | {"cls_positions": batch["cls_positions"]}

    def coefficients(self) -> dict[str, float]:
        """Return the factor of the next-token loss, if it is used. The task's own term has the factor 1."""
        return {TERM: self.language_model} if self.language_model else {}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        own = super().weights(batch)
        if not self.language_model:
            return own
        return own | {TERM: jnp.maximum(jnp.sum(next_token_weights(batch["segment_ids"])), 1e-9)}

    def sums_of(self, outputs: Any, batch: Batch) -> LossSums:
        own = super().sums_of(outputs, batch)
        if not self.language_model:
            return own
        nats = next_token_nats(outputs.scores, batch["input_ids"])
        return own.replace(losses=own.losses | {TERM: jnp.sum(nats * next_token_weights(batch["segment_ids"]))})

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of model and head. With the next-token loss there is a prediction at every position."""
        flops = super().train_flops(config, batch)
        if not self.language_model:
            return flops
        *rows, length = batch["input_ids"].shape
        count = math.prod(rows)
        return flops + config.train_flops(count, length, length) - config.train_flops(count, length, 0)


def next_token_weights(segment_ids: jax.Array) -> jax.Array:
    """Map int [... T] to float32 [... T]: 1 / N at the first N tokens of every packed sequence of N + 1, else 0."""
    following = jnp.concatenate([segment_ids[..., 1:], jnp.zeros_like(segment_ids[..., :1])], axis=-1)
    asked = (segment_ids > 0) & (segment_ids == following)
    same_sequence = segment_ids[..., :, None] == segment_ids[..., None, :]
    return asked / jnp.maximum(jnp.sum(same_sequence & asked[..., None, :], axis=-1), 1)


def next_token_nats(scores: TokenScores, input_ids: jax.Array) -> jax.Array:
    """Return the nats of the next tokens, float32 [... T].

    scores: scores of rows, [N T]. input_ids: the rows themselves, int [... T]. The values at the last tokens have no
    meaning.
    """
    following = jnp.roll(input_ids, -1, axis=-1)
    nats, _ = scores.cross_entropy(following.reshape(-1, following.shape[-1]))
    return nats.reshape(input_ids.shape)
