"""Objectives that predict a whole text, with nothing hidden (Raffel et al. 2020, sections 3.2.3 and 3.3.1).

Neither has padding: rows of N tokens become targets of N + 1.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.choosing import strict_draws, visited
from plmjax.objectives.text_to_text.text_to_text import Stream, TextToText, ended


@dataclasses.dataclass(frozen=True)
class TextToTextLanguageModel(TextToText):
    """Prediction of the text without a source: the language model of an encoder-decoder.

    Released configuration: t5/models/gin/objectives/lm.gin.

    Deviation: the source is an end token alone. In the released code it is empty, and the decoder attends to padding.
    """

    perplexity: ClassVar[bool] = True

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the lengths of the end token, and of the text with one."""
        return 1, tokens + 1

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        """Return no text, and the text."""
        return ended(ids[:0], jnp.zeros(0, bool), vocabulary), ended(ids, jnp.arange(len(ids)) < length, vocabulary)


@dataclasses.dataclass(frozen=True)
class Deshuffling(TextToText):
    """Prediction of the text, given its tokens in random order (all_permute.gin, `permute_noise_tokens`)."""

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the length of the text with an end token, twice."""
        return tokens + 1, tokens + 1

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        real = jnp.arange(len(ids)) < length
        shuffled = ids[visited(strict_draws(key, len(ids)), real)]
        return ended(shuffled, real, vocabulary), ended(ids, real, vocabulary)
