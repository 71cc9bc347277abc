"""The prefix language model of an encoder-decoder: predict the rest of a text, given its beginning.

Raffel et al. 2020, 3.3.1. A text of n tokens is cut at a point drawn uniformly from 1 to n - 1
(`random_prefix_noise_mask` of google-research/text-to-text-transfer-transformer). The encoder reads the part before
the cut, the decoder predicts the part after it. With one cut text, half of a row would be padding. So a row holds two
texts, cut at c and at n - c. Their beginnings fill one row and their rests another, as separate segments
(`pack_prefix_lm_encoder_decoder` there).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.text_to_text.text_to_text import Stream, TextToText


@dataclasses.dataclass(frozen=True)
class TextToTextPrefixLanguageModel(TextToText):
    """Mean nats of the rests of the two halves of a row, each given its beginning.

    Rows of an even number N of tokens become sources and targets of N / 2 + 2, without padding.
    """

    perplexity: ClassVar[bool] = True

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the lengths of source and target: the tokens of one half, and two end tokens."""
        return tokens // 2 + 2, tokens // 2 + 2

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Run the checks of the base class; also require that both halves can be cut."""
        super().check(tokens, vocabulary)
        if tokens < 4 or tokens % 2:
            raise UserError(
                f"Expected rows of an even number of at least 4 tokens for {type(self).__name__}, found {tokens}; "
                f"change --data.sequence_length."
            )

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        """Return the beginnings of both halves, and their rests. The rest of an incomplete half has a token or more."""
        half = len(ids) // 2
        cut = jax.random.randint(key, (), 1, half)
        place, second = jnp.arange(len(ids)) % half, jnp.arange(len(ids)) // half
        tokens = jnp.stack([jnp.minimum(length, half), jnp.maximum(length - half, 0)])
        cuts = jnp.minimum(jnp.stack([cut, half - cut]), tokens - 1)
        real, before = place < tokens[second], place < cuts[second]
        segments = jnp.where(real, second + 1, 0)

        def side(kept: jax.Array) -> Stream:
            """Return the kept tokens of each half, and an end token after each half that exists."""
            end = jnp.full((2, 1), vocabulary.document_end, ids.dtype)
            ends = jnp.where(tokens > 0, jnp.array([1, 2]), 0)[:, None]
            halves = jnp.concatenate([ids.reshape(2, half), end], axis=1)
            parts = jnp.concatenate([jnp.where(kept, segments, 0).reshape(2, half), ends], axis=1)
            return Stream(halves.ravel(), parts.ravel())

        return side(before), side(~before)
