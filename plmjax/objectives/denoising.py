"""BART's pretraining objective: restore a text that noise has corrupted (Lewis et al. 2020, arXiv 1910.13461).

The encoder reads the corrupted text. The decoder predicts the clean text, after </s>. Noise is made inside the jitted
step, in the order of fairseq 0.12.2's data/denoising_dataset.py: sentences are permuted; words are masked, one by one
or in spans; tokens are inserted; the text is rotated.

In a row of n words, ceil(`mask` n) words are masked. With "span" they are masked in spans whose lengths are drawn from
a Poisson distribution until they cover this number; the last is shortened. A span of length 0 inserts a token at a
random position instead. A masked token or span becomes the mask token or, with probability `random_fraction`, a random
token. Among n inserted tokens ceil(random_fraction n) are random, so a single one is always random.

Deviation: lengths are drawn with a mean of 3.5, as in the released command; the paper says 3.
Deviation: special tokens inside a row separate documents here. They are never masked; spans end before them, and a
word begins after them. The released rows hold one document.
Deviation: the number of inserted tokens is the number of spans of length 0, except for those beyond the row's capacity,
which only happens to rows of a few words. The released code computes the number by a division, whose rounding may add
one.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, nearest, quoted
from plmjax.objectives import noise
from plmjax.objectives.choosing import strict_draws
from plmjax.objectives.masked_language_model import eligible_tokens, word_starts
from plmjax.objectives.text_to_text.text_to_text import MASK, Stream, TextToText

UNITS = ("token", "word", "span")
REPLACEMENTS = ("one", "each", "none")


@dataclasses.dataclass(frozen=True)
class Denoising(TextToText):
    """Mean nats of the tokens of a text given the text with noise, for rows such as `FullSentences` gives.

    The released recipe masks spans and permutes all sentences. Token masking is `unit="token"`; token deletion also
    sets `replacement="none"`.

    Raises:
        UserError: an unknown unit or replacement, or fractions out of their range.
    """

    start: ClassVar[str] = "sep"
    gaps: ClassVar[str] = MASK

    mask: float = 0.3
    """Share of the words, or of the tokens, to hide."""
    unit: str = "span"
    """Unit to hide: single tokens, single words, or spans of words."""
    replacement: str = "one"
    """Replacement of a hidden word or span: one mask token, one for each of its tokens, or none."""
    mean_length: float = 3.5
    """Mean of the Poisson distribution of the lengths of spans, in words."""
    random_fraction: float = 0.1
    """Share of the masks that are replaced by random tokens: any token except <s>."""
    permute: float = 1.0
    """Share of the sentences to permute."""
    insert: float = 0.0
    """Number of tokens to insert, as a fraction of the remaining tokens; 0 inserts none."""
    rotate: float = 0.0
    """Probability that the text of a row is rotated to begin at a random position inside it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, known in (("unit", self.unit, UNITS), ("replacement", self.replacement, REPLACEMENTS)):
            if value not in known:
                raise UserError(f"Expected a known --objective.{name}, found {quoted(value)}; {nearest(value, known)}")
        for name in ("mask", "random_fraction", "permute", "insert", "rotate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"Expected --objective.{name} from 0 to 1, found {getattr(self, name)}; change it.")
        if not 0 < self.mean_length <= 16:
            raise UserError(
                f"Expected --objective.mean_length above 0 and up to 16, found {self.mean_length}; change it."
            )

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the lengths of source and target.

        The target is the row. The source is not longer, unless tokens are inserted.
        """
        return tokens + self._capacity_for_inserted(tokens), tokens

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Check rows as in the base class.

        The tokenizer must also have a mask token, and mark the words and sentences that this noise needs.
        """
        super().check(tokens, vocabulary)
        if min(vocabulary.mask, vocabulary.cls) < 0:
            raise UserError(
                "Expected a tokenizer with <s> and <mask>, or tokens that serve as them, for Denoising, found one "
                "without; use a byte-bpe tokenizer."
            )
        if self.unit != "token" and vocabulary.continuation is None:
            raise UserError(
                "Expected a tokenizer that marks the continuation of words, found one that does not; set "
                "--objective.unit token."
            )
        if self.permute and vocabulary.full_stop < 0:
            raise UserError(
                'Expected a tokenizer with a token "." that ends sentences, found none; set --objective.permute 0.'
            )

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        permuting, masking, inserting, rotating = jax.random.split(key, 4)
        noisy, noisy_length = self._permute(permuting, ids, length, vocabulary), length
        if self.mask:
            noisy, noisy_length = self._mask_spans(masking, noisy, noisy_length, vocabulary)
        room = self.lengths(len(ids))[0]
        if self.insert:
            count = jnp.array([self._capacity_for_inserted(tokens) for tokens in range(len(ids) + 1)])[noisy_length]
            noisy, noisy_length = self._insert_noise(
                inserting, noisy, noisy_length, count=count, room=room, vocabulary=vocabulary
            )
        if self.rotate:
            whether, where = jax.random.split(rotating)
            offset = jax.random.randint(where, (), 1, jnp.maximum(noisy_length, 2))
            rotates = jax.random.uniform(whether) < self.rotate
            noisy = jnp.where(rotates, noise.rotate(noisy, noisy_length, offset), noisy)
        return _stream(noisy, noisy_length), _stream(ids, length)

    def _permute(self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary) -> jax.Array:
        if not self.permute:
            return ids
        ends = noise.sentence_ends(ids == vocabulary.full_stop, length)
        sentences = jnp.sum(ends)
        moved = jnp.array([math.ceil(self.permute * count) for count in range(len(ids) + 1)])[sentences]
        draws = (strict_draws(one, len(ids)) for one in jax.random.split(key))
        return noise.permute_sentences(ids, ends, noise.sentence_order(*draws, sentences, moved))

    def _mask_spans(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[jax.Array, jax.Array]:
        """Return the row with masked words, and its length."""
        lengths_key, words_key, kinds_key, tokens_key, inserted_key = jax.random.split(key, 5)
        tokens = len(ids)
        segments = (jnp.arange(tokens) < length).astype(jnp.int32)
        inside = eligible_tokens(ids, segments, vocabulary)
        starts = inside if self.unit == "token" else word_starts(ids, segments, inside, vocabulary)
        words = jnp.sum(starts)
        # In float32, as in the released code.
        budgets = np.ceil(np.arange(tokens + 1, dtype=np.float32) * np.float32(self.mask)).astype(np.int32)
        budget, inserted = jnp.array(budgets)[words], 0
        if self.unit == "span":
            probabilities = jnp.array(np.log(noise.poisson_probabilities(self.mean_length)), jnp.float32)
            # The mean of their sum is above twice the budget. It is less than the budget in fewer than 1 of 1e10 rows.
            draws = math.ceil((2 * int(budgets[-1]) + 64) / self.mean_length)
            lengths = jax.random.categorical(lengths_key, probabilities, shape=(draws,))
            lengths, inserted = noise.within_budget(lengths, budget)
        else:
            lengths = (jnp.arange(int(budgets[-1])) < budget).astype(jnp.int32)
        spans, numbers = noise.spans_of_words(strict_draws(words_key, tokens), words, lengths)
        span_starts, rest, owner = noise.cover_spans(starts, inside, spans)
        kinds = jax.random.uniform(kinds_key, lengths.shape) < self.random_fraction
        masks = jnp.where(kinds[numbers[owner]], self._random(tokens_key, tokens, vocabulary), vocabulary.mask)
        ids, length = noise.replace_spans(
            ids, length, span_starts, rest=rest, masks=masks, replacement=self.replacement
        )
        if self.unit == "span":
            inserted = jnp.minimum(inserted, tokens - length)
            ids, length = self._insert_noise(
                inserted_key, ids, length, count=inserted, room=tokens, vocabulary=vocabulary
            )
        return ids, length

    def _insert_noise(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, *, count: jax.Array, room: int, vocabulary: Vocabulary
    ) -> tuple[jax.Array, jax.Array]:
        """Return the row with `count` masks and random tokens inserted, int [room], and its length."""
        places_key, tokens_key = jax.random.split(key)
        random = jnp.array([math.ceil(self.random_fraction * number) for number in range(room + 1)])[count]
        tokens = self._random(tokens_key, room, vocabulary)
        inserted = jnp.where(jnp.arange(room) < random, tokens, vocabulary.mask)
        return noise.insert_tokens(ids, length, strict_draws(places_key, room), count=count, noise=inserted)

    def _capacity_for_inserted(self, tokens: int) -> int:
        return math.ceil(self.insert * tokens)

    def _random(self, key: jax.Array, count: int, vocabulary: Vocabulary) -> jax.Array:
        token = jax.random.randint(key, (count,), 0, vocabulary.size - 1, jnp.int32)
        return token + (token >= vocabulary.cls)


def _stream(ids: jax.Array, length: jax.Array) -> Stream:
    return Stream(ids, (jnp.arange(len(ids)) < length).astype(jnp.int32))
