"""Capabilities of some objectives: each is a class beside `Objective` that those inherit from which have it.

if isinstance(objective, WritesTexts):
    decoding = objective.decoding()
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax

from plmjax.objectives.objective import Batch, LossInputs, Objective


class ReadsRows(abc.ABC):
    """Its loss reads few rows of large tables. The step looks these up before, and may update them alone."""

    @abc.abstractmethod
    def rows(self, batch: Batch) -> dict[str, jax.Array]:
        """Path of a table -> ids, int [B ...], of all rows of it that the loss of a corrupted batch reads.

        Each table is one `Embedding`'s, which is called once, with these ids. The step looks the rows up, and updates
        them alone where the optimizer can; tables that are not named may be read whole.
        """


def rows_of(objective: Objective, batch: Batch) -> dict[str, jax.Array]:
    """`ReadsRows.rows`; no tables of an objective that reads them whole."""
    return objective.rows(batch) if isinstance(objective, ReadsRows) else {}


class LanguageModel(abc.ABC):
    """Its module gives each token a probability from those before it."""

    @abc.abstractmethod
    def language_model_task(self) -> "ScoresNextToken":
        """The objective of the next token for the same module, of rows such as `Blocks` gives."""


class ScoresNextToken(LanguageModel):
    """It is itself the objective of the next token."""

    def language_model_task(self) -> "ScoresNextToken":
        """This objective."""
        return self

    @abc.abstractmethod
    def score(
        self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Nats of `next_ids`, each given the tokens before it, float32 [B T]; and whether none is likelier, bool [B T].

        batch: corrupted.
        """


class ReadsPrefix:
    """The first tokens of a row see each other.

    A decoder that such an objective trains takes `prefix_lengths`, and reads the whole prompt of a text as its prefix.
    """

    prefix: ClassVar[str]
    """The tokens of a row that are its prefix, in words."""


def prefix_of(objective: Objective) -> str:
    """`ReadsPrefix.prefix`; empty for an objective whose rows have none."""
    return objective.prefix if isinstance(objective, ReadsPrefix) else ""


class ReadsDirections:
    """It is a language model for each of several directions of a text."""

    directions: ClassVar[tuple[str, ...]]
    """Their names, each with a metric NAME_nats."""


class WritesTexts(abc.ABC):
    """Its model learns to write a text given another."""

    @abc.abstractmethod
    def decoding(self) -> Any:
        """The settings with which texts are written, a plmjax.generation.options.Decoding."""

    @abc.abstractmethod
    def prompts(self, texts: Sequence[str], tokenizer: Any, model: Any, data: Any) -> list[list[int]]:
        """The tokens that the model is given of each text to write after.

        tokenizer: a plmjax.data.tokenizers.Tokenizer. model, data: of the experiment.
        """
