"""T5's pretraining objective: predict hidden spans of a text (Raffel et al. 2020, section 3.3.4).

A text of n tokens has h = round(rate n) hidden tokens in round(h / mean length) spans. Visible and hidden spans
alternate, beginning with a visible one. The division of both kinds into spans is uniform over all possible divisions.
The source has a sentinel in place of every hidden span, the target one in place of every visible span:

    source  Thank you <0> me to your party <1> week </s>
    target  <0> for inviting <1> last </s>

(`span_corruption`, `random_spans_noise_mask` of google-research/text-to-text-transfer-transformer,
t5/data/preprocessors.py.) The numbers of tokens and spans follow from n, so rows without padding become sources and
targets without padding. `row_length` gives the length of such rows: 568 tokens for sources of 512 and targets of 114.

Counts are rounded in float32, half to even, as in the released mask. The released helper for the length of a row rounds
in float64, and differs by one token for some lengths.
"""

import dataclasses
import functools
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.choosing import order_by_draws, strict_draws
from plmjax.objectives.text_to_text.sentinels import check_sentinels, replace_spans
from plmjax.objectives.text_to_text.text_to_text import SENTINELS, Stream, TextToText


@dataclasses.dataclass(frozen=True)
class SpanCorruption(TextToText):
    """Mean nats of the hidden spans and their sentinels, given the rest of the text.

    Raises:
        UserError: a rate or a mean length out of its range.
    """

    gaps: ClassVar[str] = SENTINELS

    rate: float = 0.15
    """Share of the tokens to hide."""
    mean_length: float = 3.0
    """Mean number of tokens of a hidden span."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise UserError(f"Expected --objective.rate between 0 and 1, found {self.rate}; change it.")
        if self.mean_length < 1:
            raise UserError(f"Expected --objective.mean_length of at least 1, found {self.mean_length}; change it.")

    def counts(self, tokens: int) -> tuple[int, int]:
        """Return the number of hidden tokens and of hidden spans in a text of `tokens` tokens.

        Fewer than 2 tokens count as 2.
        """
        length = max(tokens, 2)
        hidden = int(np.round(np.float32(length) * np.float32(self.rate)))
        hidden = min(max(hidden, 1), length - 1)
        spans = int(np.round(np.float32(hidden) / np.float32(self.mean_length)))
        return hidden, min(max(spans, 1), length - hidden)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the exact lengths of source and target for a full row."""
        hidden, spans = self.counts(tokens)
        return max(tokens, 2) - hidden + spans + 1, hidden + spans + 1

    def row_length(self, longest: int) -> int:
        """Return the maximum length of a row whose source and target have at most `longest` tokens each.

        Raises:
            UserError: no row is so short.
        """
        if max(self.lengths(2)) > longest:
            raise UserError(f"Expected a source of at least {max(self.lengths(2))} tokens, found {longest}; raise it.")
        tokens = 2
        while max(self.lengths(tokens + 1)) <= longest:
            tokens += 1
        return tokens

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Run the checks of the base class; also require sentinels for all spans."""
        super().check(tokens, vocabulary)
        check_sentinels(self.counts(tokens)[1], vocabulary)

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        hidden_key, visible_key = jax.random.split(key)
        tables = jnp.array([self.counts(tokens) for tokens in range(len(ids) + 1)], jnp.int32)
        hidden, spans = tables[length, 0], tables[length, 1]
        room = self.counts(len(ids))[1]
        cut = functools.partial(composition, parts=spans, room=len(ids), most=room)
        mask = alternate_spans(cut(visible_key, jnp.maximum(length, 2) - hidden), cut(hidden_key, hidden), len(ids))
        real = jnp.arange(len(ids)) < length
        return replace_spans(ids, mask, real, vocabulary), replace_spans(ids, ~mask, real, vocabulary)


def composition(key: jax.Array, items: jax.Array, parts: jax.Array, *, room: int, most: int) -> jax.Array:
    """Divide items into parts of at least one, uniformly over all divisions: int32 [most], 0 after the last part.

    items, parts: int scalars, 1 <= parts <= items <= room, parts <= most.
    """
    place = jnp.arange(room)
    gaps = (place > 0) & (place < items)  # true where an item may begin a part
    chosen = order_by_draws(strict_draws(key, room), gaps)
    cuts = jnp.zeros(room, bool).at[chosen].set(place < parts - 1)
    return jnp.zeros(most, jnp.int32).at[jnp.cumsum(cuts)].add(place < items)


def alternate_spans(visible: jax.Array, hidden: jax.Array, length: int) -> jax.Array:
    """Return bool [length]: true in hidden spans, from the lengths, int [S], of the visible and the hidden spans."""
    chex.assert_equal_shape([visible, hidden])
    starts = jnp.cumsum(jnp.stack([visible, hidden], axis=1).ravel())
    changes = jnp.zeros(length, jnp.int32).at[starts].add(1, mode="drop")
    return jnp.cumsum(changes) % 2 == 1
