"""The prefix language model: each remaining token of a text is predicted, given a prefix with bidirectional attention.

Raffel et al. (JMLR 2020, arXiv 1910.10683), sections 3.2.1 and 3.3.1: a text is cut in two at a point drawn uniformly
(`random_prefix_noise_mask` of google-research/text-to-text-transfer-transformer). Tokens of the prefix see all of the
prefix. Tokens of the rest see the tokens before them, and only the rest is predicted.

A row is corrupted inside the jitted step. Field added to a batch:

    prefix_lengths     int32 [B]       number of tokens of the prefix, at least one
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.capabilities import ReadsPrefix
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch


@dataclasses.dataclass(frozen=True)
class PrefixLanguageModel(ReadsPrefix, NextToken):
    """Mean nats of the tokens after a row's prefix, for rows of one sequence such as `Chunks` gives.

    The module takes `prefix_lengths` and returns `scores`; it may be any decoder.
    """

    prefix: ClassVar[str] = "drawn for each row, from 1 token to all of them"

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Draw the cuts. A row of n input tokens has a prefix of 1 to n tokens, with equal probability.

        Tokens inside the prefix are not predicted, because they see each other. The last token of the prefix predicts
        the first token after it.
        """
        ids = batch["input_ids"]
        tokens = jnp.sum(batch["segment_ids"] > 0, axis=1)
        prefix = jax.random.randint(key, (len(ids),), 1, jnp.maximum(tokens, 1) + 1)
        rest = jnp.arange(ids.shape[1]) >= prefix[:, None] - 1
        return batch | {"prefix_lengths": prefix, "next_weights": batch["next_weights"] * rest}

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return super().model_inputs(batch) | {"prefix_lengths": batch["prefix_lengths"]}

    def language_model_task(self) -> "NextTokenAfterPrefix":
        """Return the next-token objective whose prefix is all tokens before the first target of a row."""
        return NextTokenAfterPrefix()


@dataclasses.dataclass(frozen=True)
class NextTokenAfterPrefix(ReadsPrefix, NextToken):
    """Mean nats of a row's target tokens, given its prefix: the tokens before the first target.

    The first token of a row always belongs to its prefix, as in training. The module is that of the prefix language
    model.
    """

    prefix: ClassVar[str] = "the tokens of a row before the first one asked for, at least 1"

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        # Position i predicts token i + 1, so i + 1 tokens precede the target. A row without targets has 1.
        before = jnp.argmax(batch["next_weights"] > 0, axis=1) + 1
        return super().model_inputs(batch) | {"prefix_lengths": before.astype(jnp.int32)}
