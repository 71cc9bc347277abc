"""The distributions that a model predicts: the logits by which a student learns from its teacher."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plmjax.compression.distillation.captured_activations import one_token_inputs
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.choices import MultipleChoice
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.questions import SpanExtraction
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.finetuning.tasks.task import exists
from plmjax.finetuning.tasks.text_generation import TextGeneration
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch, Objective
from plmjax.objectives.sequence_to_sequence import SequenceToSequence


@dataclasses.dataclass(frozen=True)
class Distributions:
    """The logits of an objective's predictions, with their weights.

    over_vocabulary: true if the classes are the tokens of the vocabulary.
    """

    over_vocabulary: ClassVar[bool] = False
    objective: Objective

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return the logits of every prediction, float32 [... classes]."""
        raise NotImplementedError(f"{type(self).__name__} must define `logits`.")

    def weights(self, batch: Batch) -> jax.Array:
        """Return the weight of every prediction, float32 [...]; 0 for no prediction."""
        raise NotImplementedError(f"{type(self).__name__} must define `weights`.")

    def check(self, config: ModelConfig) -> None:
        """Raise UserError for a model without such logits."""


class TextLabels(Distributions):
    """Labels of texts, [R K classes]."""

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        return outputs.logits

    def weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every text."""
        return exists(batch)


class WordLabels(Distributions):
    """Labels of words, [R T classes]."""

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        return outputs.logits

    def weights(self, batch: Batch) -> jax.Array:
        """Return 1 for the first token of every word."""
        return batch["label_weights"]


class ChoiceScores(Distributions):
    """Choices of questions, [R K C]."""

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        return jnp.moveaxis(outputs.logits, 1, -1)

    def weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every question."""
        return exists(batch)[:, 0]


class AnswerEnds(Distributions):
    """The first and last tokens of answers, [R K 2 T]; tokens of other examples in the row have no probability."""

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        slots = jnp.arange(1, batch["example_ids"].shape[1] + 1)
        own = batch["segment_ids"][:, None] == slots[:, None]  # [R K T]
        ends = jnp.stack([outputs.start_logits, outputs.end_logits], axis=1)  # [R 2 T]
        return jnp.where(own[:, :, None], ends[:, None], EXCLUDED)

    def weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every question, at both ends."""
        there = exists(batch)
        return jnp.stack([there, there], axis=-1)


class MaskedTokens(Distributions):
    """Masked tokens, [B P V]."""

    over_vocabulary: ClassVar[bool] = True

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        return outputs.logits

    def weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every masked token."""
        return batch["masked_weights"]


class NextTokens(Distributions):
    """Next tokens of a decoder or an encoder-decoder, [B T V]."""

    over_vocabulary: ClassVar[bool] = True

    def logits(self, outputs: Any, batch: Batch) -> jax.Array:
        return outputs.scores.logits()

    def weights(self, batch: Batch) -> jax.Array:
        """Return 1 for every target."""
        return batch["next_weights"]

    def check(self, config: ModelConfig) -> None:
        """Raise UserError for a model that chooses a token in several steps."""
        module = self.objective.module(config, Execution())
        outputs, _ = jax.eval_shape(lambda: module.init_with_output(jax.random.key(0), **one_token_inputs(config)))
        if not isinstance(outputs.scores, VocabularyScores):
            raise UserError(
                f"Expected a model whose softmax is over the whole vocabulary, found {config.system} with "
                f"{type(outputs.scores).__name__}; distil another model."
            )


_KINDS: tuple[tuple[type[Objective], type[Distributions] | None], ...] = (
    (SequenceClassification, TextLabels),
    (CrfTagging, None),
    (TokenTagging, WordLabels),
    (MultipleChoice, ChoiceScores),
    (AnswerSearch, None),
    (SpanExtraction, AnswerEnds),
    (TextGeneration, NextTokens),
    (MaskedLanguageModel, MaskedTokens),
    (NextToken, NextTokens),
    (SequenceToSequence, NextTokens),
)
"""Class of an objective -> its distributions; the first match counts. None: its loss is not a softmax of logits."""


def distributions_of(objective: Objective) -> Distributions:
    """Return the distributions that an objective predicts.

    Raises:
        UserError: it does not predict classes.
    """
    kind = next((kind for known, kind in _KINDS if isinstance(objective, known)), None)
    if kind is None:
        raise UserError(
            f"Expected an objective that chooses among labels, choices or tokens, found {type(objective).__name__}; "
            f"distil a teacher of another objective."
        )
    return kind(objective)
