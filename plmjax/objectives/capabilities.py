"""Capabilities that only some objectives have. Each is a base class beside `Objective`.

if isinstance(objective, GeneratesText):
    decoding = objective.decoding()
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import numpy as np

from plmjax.errors import UserError
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective


class ReadsRows(abc.ABC):
    """An objective whose loss reads few rows of large tables.

    The step looks these rows up first, and may update only them.
    """

    @abc.abstractmethod
    def rows(self, batch: Batch) -> dict[str, jax.Array]:
        """Return a dict from path of a table to ids, int [B ...], of all rows that the loss of a corrupted batch reads.

        Each table belongs to one `Embedding`, which is called once, with these ids. The step looks the rows up, and
        updates only them if the optimizer can. Tables that are not listed are read normally.
        """


def rows_of(objective: Objective, batch: Batch) -> dict[str, jax.Array]:
    """Return `ReadsRows.rows`, or an empty dict for any other objective."""
    return objective.rows(batch) if isinstance(objective, ReadsRows) else {}


class ComparesRows(abc.ABC):
    """An objective whose loss of a row depends on the other rows of the global batch, such as its negatives.

    A microbatch has fewer other rows. So the step passes the whole batch of the mesh at once, and the objective itself
    encodes it in microbatches. Rings, on which each device computes the loss of its own rows, do not support such an
    objective.
    """

    @abc.abstractmethod
    def sums_in_microbatches(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, microbatches: int
    ) -> LossSums:
        """Return `Objective.sums` of a corrupted batch in training, with the memory of one microbatch of rows."""


class LanguageModel(abc.ABC):
    """An objective whose module gives each token a probability from the tokens before it."""

    @abc.abstractmethod
    def language_model_task(self) -> "ScoresNextToken":
        """Return the next-token objective for the same module, for rows such as `Chunks` gives."""


class ScoresNextToken(LanguageModel):
    """An objective that is itself the next-token objective."""

    def language_model_task(self) -> "ScoresNextToken":
        return self

    @abc.abstractmethod
    def score(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Return nats of `next_ids` given the tokens before, and whether no token is likelier, float32 and bool [B T].

        batch: a corrupted batch.
        """


DOCUMENTS = ("joined", "apart")
"""Settings of a memory: joined keeps it from one document to the next; apart begins each document without it."""


def check_memory(length: int, option: str, sources: ConstantSources) -> None:
    """Raise UserError if a memory is longer than the training text. `option` sets its length in tokens."""
    tokens = int(np.sum(sources.token_counts))  # 0 in a plan, which reads no text
    if tokens and length > tokens:
        raise UserError(
            f"Expected a memory of at most the {tokens} tokens of the training text, found {length}; lower "
            f"--{option}, or give more text."
        )


class Remembers(abc.ABC):
    """An objective whose module has a memory of a fixed number of tokens, which an evaluation may choose."""

    @abc.abstractmethod
    def with_memory(self, tokens: int) -> Self:
        """Return the same objective with a memory of `tokens` tokens in evaluations."""


class AdaptsModel(abc.ABC):
    """An objective that compiles a smaller program when a statistic of the parameters allows it, e.g. the longest span.

    The parameters before a step alone decide its program. The results of two programs may differ in their last bits,
    and a run that was killed must repeat a step with the same program. All configs have the same train state.
    """

    @abc.abstractmethod
    def statistic(self, config: Any, params: Any) -> jax.Array:
        """Return the statistic of the parameters, a scalar."""

    @abc.abstractmethod
    def adapt_config(self, config: Any, statistic: float) -> Any:
        """Return the config to compute with: one of a few, never larger than `config`, the config of the run."""

    @abc.abstractmethod
    def describe_computation(self, config: Any) -> str:
        """Return the part of the model that a program of this config computes, for the header of the log."""


class ReadsPrefix:
    """An objective whose first tokens of a row, the prefix, see each other.

    A decoder trained with this objective takes `prefix_lengths`, and reads the prompt of a text as its prefix.
    """

    prefix: ClassVar[str]
    """Description of the tokens that form a row's prefix."""


def prefix_of(objective: Objective) -> str:
    """Return `ReadsPrefix.prefix`; empty for an objective whose rows have no prefix."""
    return objective.prefix if isinstance(objective, ReadsPrefix) else ""


class ReadsDirections:
    """An objective with a language model for each of several directions of a text."""

    directions: ClassVar[tuple[str, ...]]
    """The names of the directions. Each has a metric NAME_nats."""


class GeneratesText(abc.ABC):
    """An objective whose model learns to generate a text given another text."""

    @abc.abstractmethod
    def decoding(self) -> Any:
        """Return the settings of text generation, a plmjax.generation.options.Decoding."""

    @abc.abstractmethod
    def prompts(self, texts: Sequence[str], tokenizer: Any, model: Any, data: Any) -> list[list[int]]:
        """Return the prompt's token ids for each text.

        tokenizer: a plmjax.data.tokenizers.Tokenizer. model, data: fields of the experiment.
        """
