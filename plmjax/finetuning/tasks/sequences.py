"""The base of tasks with an output for whole sequences: the position that stands for each, and an auxiliary loss.

A model that reads from left to right may go on learning to tell the next token while it learns a task (Radford et al.
2018, section 3.2): the loss of the task, plus `language_model` times

    mean over sequences of  mean over the tokens of a sequence of  nats of the next token

where the special tokens of the row are asked for like any other (openai/finetune-transformer-lm train.py, `model`).
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
    """Base of those that judge whole sequences, by the system's own head for them."""

    language_model: float = dataclasses.field(default=0.0, kw_only=True)
    """Factor of the loss of the next token beside the task's own, 0.5 in GPT's paper; 0 leaves it out."""

    def __post_init__(self) -> None:
        """Checks the factor."""
        check_ranges("objective", self, language_model=FROM_0)

    def check_model(self, config: Any) -> None:
        """Raises UserError where the model is asked for the next token and does not tell it."""
        if self.language_model and "scores" not in config.system.returns:
            raise UserError(
                f"Expected a model that reads from left to right for --objective.language_model "
                f"{self.language_model:g}, found {config.system}; set it to 0, or fine-tune a GPT."
            )

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """As every task, and the positions that stand for the sequences."""
        return super().model_inputs(batch) | {"cls_positions": batch["cls_positions"]}

    def coefficients(self) -> dict[str, float]:
        """The task's own term counts once."""
        return {TERM: self.language_model} if self.language_model else {}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """The task's own, and the number of sequences."""
        own = super().weights(batch)
        if not self.language_model:
            return own
        return own | {TERM: jnp.maximum(jnp.sum(next_token_weights(batch["segment_ids"])), 1e-9)}

    def sums_of(self, outputs: Any, batch: Batch) -> LossSums:
        """The task's own, and the nats of the next tokens."""
        own = super().sums_of(outputs, batch)
        if not self.language_model:
            return own
        nats = next_token_nats(outputs.scores, batch["input_ids"])
        return own.replace(losses=own.losses | {TERM: jnp.sum(nats * next_token_weights(batch["segment_ids"]))})

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """As every task's, with a prediction at every position where the next token is asked for."""
        flops = super().train_flops(config, batch)
        if not self.language_model:
            return flops
        *rows, length = batch["input_ids"].shape
        count = math.prod(rows)
        return flops + config.train_flops(count, length, length) - config.train_flops(count, length, 0)


def next_token_weights(segment_ids: jax.Array) -> jax.Array:
    """int [... T] -> float32 [... T]: 1 / N at the first N tokens of every packed sequence of N + 1, else 0."""
    following = jnp.concatenate([segment_ids[..., 1:], jnp.zeros_like(segment_ids[..., :1])], axis=-1)
    asked = (segment_ids > 0) & (segment_ids == following)
    together = segment_ids[..., :, None] == segment_ids[..., None, :]
    return asked / jnp.maximum(jnp.sum(together & asked[..., None, :], axis=-1), 1)


def next_token_nats(scores: TokenScores, input_ids: jax.Array) -> jax.Array:
    """Scores of rows, [N T], and the rows themselves, int [... T] -> float32 [... T]; those of the last tokens mean
    nothing."""
    following = jnp.roll(input_ids, -1, axis=-1)
    nats, _ = scores.cross_entropy(following.reshape(-1, following.shape[-1]))
    return nats.reshape(input_ids.shape)
