"""Independent choice of tokens: simpler objectives that T5's paper compares (Raffel et al. 2020, 3.3.1-3.3.3).

Each token of a text is chosen with the probability `rate` (`iid_noise_mask` of google-research/
text-to-text-transfer-transformer, t5/data/preprocessors.py). The treatments of the chosen tokens have the names of the
released configurations in t5/models/gin/objectives.

The number of chosen tokens is random. A row of N tokens becomes a source and a target of at most N + 1 tokens, and both
have this capacity. The released code cuts targets to a length that 99.9 % of them need. Here nothing is lost, but
padding takes time.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.text_to_text.sentinels import check_sentinels, replace_spans
from plmjax.objectives.text_to_text.text_to_text import SENTINELS, Stream, TextToText, append_end_token


@dataclasses.dataclass(frozen=True)
class IndependentNoise(TextToText):
    """Base class of these objectives: the choice of tokens.

    Raises:
        UserError: a rate out of its range.
    """

    rate: float = 0.15
    """Probability that a token is chosen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise UserError(f"Expected --objective.rate between 0 and 1, found {self.rate}; change it.")

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the lengths of source and target.

        Each token of the text adds at most one token to each; the end token follows.
        """
        return tokens + 1, tokens + 1

    def _choose(self, key: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.random.uniform(key, ids.shape) < self.rate


@dataclasses.dataclass(frozen=True)
class MaskedText(IndependentNoise):
    """Prediction of the text from a corrupted one: a chosen token becomes the first sentinel or a random token.

    With a random fraction of 0.1 this is the paper's "BERT-style" task (iid_15_r10s90_f), with 0 its "MASS-style"
    (iid_15_m_f). Random tokens may be any but the first three ids, as released. Neither source nor target has padding.
    """

    random_fraction: float = 0.1
    """Share of the chosen tokens that are replaced by a random token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.random_fraction <= 1:
            raise UserError(
                f"Expected --objective.random_fraction from 0 to 1, found {self.random_fraction}; change it."
            )

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Run the checks of the base class; the tokenizer must also have a sentinel."""
        super().check(tokens, vocabulary)
        check_sentinels(1, vocabulary)

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        choice, kind, token = jax.random.split(key, 3)
        random = jax.random.randint(token, ids.shape, 3, vocabulary.size, ids.dtype)
        changed = jnp.where(jax.random.uniform(kind, ids.shape) < self.random_fraction, random, vocabulary.sentinels[0])
        real = jnp.arange(len(ids)) < length
        return append_end_token(jnp.where(self._choose(choice, ids), changed, ids), real, vocabulary), append_end_token(
            ids, real, vocabulary
        )


@dataclasses.dataclass(frozen=True)
class ReplacedSpans(IndependentNoise):
    """Prediction of the runs of chosen tokens, given the text with sentinels in their place (iid_15_u_u).

    The target has the same sentinels before the runs. The padding of long rows is rate^2 of the sources and
    (1 - rate)^2 of the targets on average: 2 % and 72 % at a rate of 0.15.
    """

    gaps: ClassVar[str] = SENTINELS

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Run the checks of the base class; there must also be sentinels for the expected number of spans.

        A text may have more spans; then the ids below the last sentinel serve as further sentinels, as in the released
        code.
        """
        super().check(tokens, vocabulary)
        check_sentinels(round(self.rate * (1 - self.rate) * tokens) + 1, vocabulary)

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        chosen, real = self._choose(key, ids), jnp.arange(len(ids)) < length
        return replace_spans(ids, chosen, real, vocabulary), replace_spans(ids, ~chosen, real, vocabulary)


@dataclasses.dataclass(frozen=True)
class DroppedTokens(IndependentNoise):
    """Prediction of the chosen tokens, given the other tokens without marks at the gaps (iid_15_d_d).

    The padding of long rows is `rate` of the sources and 1 - rate of the targets on average.
    """

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        chosen, real = self._choose(key, ids), jnp.arange(len(ids)) < length
        return append_end_token(ids, real & ~chosen, vocabulary), append_end_token(ids, real & chosen, vocabulary)
