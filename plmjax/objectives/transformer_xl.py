"""Transformer-XL's training objective: the next token, with a memory that is carried from row to row.

Dai et al. (ACL 2019, arXiv 1901.02860); kimiyoung/transformer-xl pytorch/train.py and eval.py. Rows are such as
`Streams` gives. No gradient passes from one row to the row before it.

An evaluation may read shorter rows (`--training.evaluation_sequence_length`) and remember more tokens than the
training, as the published ones do: rows of 80 characters with 2,100 remembered, after rows of 512 with 512.
"""

import dataclasses
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import FROM_0, UserError, check_choice, check_ranges
from plmjax.models.transformer_xl import Memory, TransformerXlConfig
from plmjax.objectives.capabilities import DOCUMENTS, Remembers
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, apply
from plmjax.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class TransformerXlPretraining(Remembers, NextToken):
    """Mean nats of each token given the tokens before it in its row and in the memory."""

    documents: str = "joined"
    """joined: the memory goes on from one document to the next, as in the released code; apart: it begins anew."""
    evaluation_mem_len: int | None = None
    """Number of tokens remembered in an evaluation; by default as many as in training (--model.mem_len)."""
    evaluation_clamp_len: int | None = None
    """Largest distance that is told apart in an evaluation; by default that of --model.clamp_len."""
    evaluation_same_length: bool | None = None
    """True if every token of an evaluation sees equally many; by default as in --model.same_length."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_choice("--objective.documents", self.documents, DOCUMENTS)
        if self.evaluation_mem_len is not None:
            check_ranges("objective", self, evaluation_mem_len=FROM_0)

    def remembering(self, tokens: int) -> Self:
        """Return the same objective with evaluations that remember `tokens` tokens."""
        return dataclasses.replace(self, evaluation_mem_len=tokens)

    def constants(self, config: TransformerXlConfig, sources: ConstantSources) -> tuple[()]:
        """Return no constants.

        Raises:
            UserError: the training text is shorter than a memory.
        """
        tokens = int(np.sum(sources.token_counts))  # 0 in a plan, which reads no text
        for length, option in (
            (config.mem_len, "model.mem_len"),
            (self.evaluation_mem_len, "objective.evaluation_mem_len"),
        ):
            if tokens and length is not None and length > tokens:
                raise UserError(
                    f"Expected a memory of at most the {tokens} tokens of the training text, found {length}; lower "
                    f"--{option}, or give more text."
                )
        return ()

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the token ids, a mask of the tokens to read, and the first positions of documents."""
        optional = {"starts": batch["starts"]} if "starts" in batch else {}
        return {"input_ids": batch["input_ids"], "attention_mask": _read(batch), **optional}

    def carry_inputs(self, carry: Memory) -> dict[str, Any]:
        """Return the memory before the row."""
        return {"cache": carry}

    def initial_carry(self, config: TransformerXlConfig, batch_size: int, sequence_length: int) -> Memory:
        """Return the memory before a text."""
        memory = config.memory(batch_size)
        return Memory(
            nn.LogicallyPartitioned(memory.hidden, ("layers", "batch", None, "embed")),
            nn.LogicallyPartitioned(memory.documents, ("batch", None)),
        )

    def evaluation_carry(self, config: TransformerXlConfig, batch_size: int, sequence_length: int) -> Memory:
        """Return the memory before a text that is evaluated."""
        return self.initial_carry(self.evaluated(config), batch_size, sequence_length)

    def evaluated(self, config: TransformerXlConfig) -> TransformerXlConfig:
        """Return the config with the settings of an evaluation."""
        names = ("mem_len", "clamp_len", "same_length")
        own = {name: getattr(self, f"evaluation_{name}") for name in names}
        return dataclasses.replace(config, **{name: value for name, value in own.items() if value is not None})

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the first positions of documents, if these are apart.

        A document begins with the end token before it, which predicts its first token.
        """
        if self.documents == "joined":
            return batch
        return batch | {"starts": batch["input_ids"] == vocabulary.document_end}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the nats of the next tokens, the number of correct predictions, and the memory after them."""
        ids, weights = self.targets(batch)
        outputs = apply(self, self._reader(module, training), loss_inputs, batch, key, training=training)
        loss, likeliest = outputs.scores.weighted_cross_entropy(ids, weights)
        metrics = {"accuracy": (jnp.sum(weights * likeliest), jnp.sum(weights))}
        return LossSums({"next_token": loss}, metrics, outputs.cache)

    def score(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Score the next tokens as `ScoresNextToken` does."""
        return super().score(self._reader(module, training), loss_inputs, batch, key, training=training)

    def _reader(self, module: nn.Module, training: bool) -> nn.Module:
        return module if training else module.clone(config=self.evaluated(module.config))


def _read(batch: Batch) -> jax.Array:
    """Return the tokens to read, bool [B T]: a row may repeat tokens of the row before, which the memory has."""
    real = batch["segment_ids"] > 0
    return real & ((batch["next_weights"] > 0) | (batch["begins"][:, None] > 0)) if "begins" in batch else real
