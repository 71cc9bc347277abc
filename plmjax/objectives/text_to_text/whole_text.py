"""Objectives that predict a complete text, with nothing hidden (Raffel et al. 2020, sections 3.2.3 and 3.3.1).

Neither has padding: rows of N tokens become targets of N + 1.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.choosing import order_by_draws, strict_draws
from plmjax.objectives.text_to_text.text_to_text import Stream, TextToText, append_end_token


@dataclasses.dataclass(frozen=True)
class TextToTextLanguageModel(TextToText):
    """Prediction of the text without a source: the language model of an encoder-decoder.

    Released configuration: t5/models/gin/objectives/lm.gin.

    Deviation: the source is an end token alone. In the released code it is empty, and the decoder attends to padding.
    """

    perplexity: ClassVar[bool] = True

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return 1 for the source, an end token, and the length of the text with an end token."""
        return 1, tokens + 1

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        """Return a source of only an end token, and the text as target."""
        return append_end_token(ids[:0], jnp.zeros(0, bool), vocabulary), append_end_token(
            ids, jnp.arange(len(ids)) < length, vocabulary
        )


@dataclasses.dataclass(frozen=True)
class Deshuffling(TextToText):
    """Prediction of the text, given its tokens in random order (all_permute.gin, `permute_noise_tokens`)."""

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the length of the text with an end token, for source and target."""
        return tokens + 1, tokens + 1

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        real = jnp.arange(len(ids)) < length
        shuffled = ids[order_by_draws(strict_draws(key, len(ids)), real)]
        return append_end_token(shuffled, real, vocabulary), append_end_token(ids, real, vocabulary)
