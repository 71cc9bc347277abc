"""BART's pretraining task: write a text that noise has spoilt (Lewis et al. 2020, arXiv 1910.13461).

The encoder reads the spoilt text, the decoder is asked for the whole clean one, after </s>. Noise is made inside the
jitted step, in the order of fairseq 0.12.2's data/denoising_dataset.py: sentences change places; words are hidden, one
by one or in spans; tokens are inserted; the text is rotated.

Of the words of a row ceil(mask words) are hidden. With "span" they are hidden in spans whose lengths are drawn from a
Poisson distribution until they cover this number; the last is shortened. A span of no word inserts a token at a random
place instead. A hidden token or span becomes the mask token or, with `random_share`, a random one; of n inserted tokens
ceil(random_share n) are random, so that a single one always is.

Deviation: lengths are drawn with a mean of 3.5, as by the released command; the paper says 3.
Deviation: special tokens inside a row, which stand between documents here, are never hidden; spans end before them, and
what follows them begins a word. The released rows hold one document.
Deviation: as many tokens are inserted as there are spans of no word, but for those that the row has no room for, which
only happens to rows of a few words. The released code computes the number by a division, whose rounding may add one.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError, nearest, quoted
from plmjax.objectives import noise
from plmjax.objectives.choosing import strict_draws
from plmjax.objectives.masked_language_model import eligible_tokens, word_starts
from plmjax.objectives.text_to_text.text_to_text import MASK, Stream, TextToText
from plmjax.vocabulary import Vocabulary

UNITS = ("token", "word", "span")
REPLACEMENTS = ("one", "each", "none")


@dataclasses.dataclass(frozen=True)
class Denoising(TextToText):
    """Mean nats of the tokens of a text given the text with noise, of rows such as `FullSentences` gives.

    The released recipe hides spans and moves all sentences. Token masking is `unit="token"`, token deletion with
    `replacement="none"` besides.

    Raises:
        UserError: an unknown unit or replacement, or shares that make no sense.
    """

    start: ClassVar[str] = "sep"
    gaps: ClassVar[str] = MASK

    mask: float = 0.3
    """Share of the words, or of the tokens, to hide."""
    unit: str = "span"
    """What is hidden: single tokens, single words, or spans of words."""
    replacement: str = "one"
    """What stands for a hidden word or span: one mask token, one for each of its tokens, or none."""
    mean_length: float = 3.5
    """Mean of the Poisson distribution of the lengths of spans, in words."""
    random_share: float = 0.1
    """Share of the masks that are random tokens instead: any but <s>."""
    permute: float = 1.0
    """Share of the sentences that change places."""
    insert: float = 0.0
    """Tokens to insert, as a share of those that are left."""
    rotate: float = 0.0
    """Probability that the text of a row begins anywhere inside it and goes round."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        for name, value, known in (("unit", self.unit, UNITS), ("replacement", self.replacement, REPLACEMENTS)):
            if value not in known:
                raise UserError(f"Expected a known --objective.{name}, found {quoted(value)}; {nearest(value, known)}")
        for name in ("mask", "random_share", "permute", "insert", "rotate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"Expected --objective.{name} from 0 to 1, found {getattr(self, name)}; change it.")
        if not 0 < self.mean_length <= 16:
            raise UserError(
                f"Expected --objective.mean_length above 0 and up to 16, found {self.mean_length}; change it."
            )

    def lengths(self, tokens: int) -> tuple[int, int]:
        """The row itself is the target; noise makes it shorter, unless tokens are inserted."""
        return tokens + self._inserted(tokens), tokens

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """As every text-to-text task's; a mask token, and what this noise must know of words and sentences."""
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
        """The row with noise, and the row."""
        permuting, masking, inserting, rotating = jax.random.split(key, 4)
        spoilt, left = self._permuted(permuting, ids, length, vocabulary), length
        if self.mask:
            spoilt, left = self._masked(masking, spoilt, left, vocabulary)
        room = self.lengths(len(ids))[0]
        if self.insert:
            count = jnp.array([self._inserted(tokens) for tokens in range(len(ids) + 1)])[left]
            spoilt, left = self._with_noise(inserting, spoilt, left, count, room, vocabulary)
        if self.rotate:
            turned, place = jax.random.split(rotating)
            offset = jax.random.randint(place, (), 1, jnp.maximum(left, 2))
            turns = jax.random.uniform(turned) < self.rotate
            spoilt = jnp.where(turns, noise.rotated(spoilt, left, offset), spoilt)
        return _stream(spoilt, left), _stream(ids, length)

    def _permuted(self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary) -> jax.Array:
        if not self.permute:
            return ids
        ends = noise.sentence_ends(ids == vocabulary.full_stop, length)
        sentences = jnp.sum(ends)
        moved = jnp.array([math.ceil(self.permute * count) for count in range(len(ids) + 1)])[sentences]
        draws = (strict_draws(one, len(ids)) for one in jax.random.split(key))
        return noise.rearranged(ids, ends, noise.sentence_order(*draws, sentences, moved))

    def _masked(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[jax.Array, jax.Array]:
        """The row with words hidden, and its length."""
        of_lengths, of_words, of_kinds, of_tokens, of_inserted = jax.random.split(key, 5)
        tokens = len(ids)
        segments = (jnp.arange(tokens) < length).astype(jnp.int32)
        inside = eligible_tokens(ids, segments, vocabulary)
        starts = inside if self.unit == "token" else word_starts(ids, segments, inside, vocabulary)
        words = jnp.sum(starts)
        # In float32, as released.
        budgets = np.ceil(np.arange(tokens + 1, dtype=np.float32) * np.float32(self.mask)).astype(np.int32)
        budget, inserted = jnp.array(budgets)[words], 0
        if self.unit == "span":
            shares = jnp.array(np.log(noise.poisson_shares(self.mean_length)), jnp.float32)
            # Their mean sum is above twice the budget, and they fall short of it less than once in 1e10 rows.
            draws = math.ceil((2 * int(budgets[-1]) + 64) / self.mean_length)
            lengths = jax.random.categorical(of_lengths, shares, shape=(draws,))
            lengths, inserted = noise.within_budget(lengths, budget)
        else:
            lengths = (jnp.arange(int(budgets[-1])) < budget).astype(jnp.int32)
        spans, numbers = noise.spans_of_words(strict_draws(of_words, tokens), words, lengths)
        begun, rest, owner = noise.covered(starts, inside, spans)
        kinds = jax.random.uniform(of_kinds, lengths.shape) < self.random_share
        masks = jnp.where(kinds[numbers[owner]], self._random(of_tokens, tokens, vocabulary), vocabulary.mask)
        ids, length = noise.hidden(ids, length, begun, rest, masks, self.replacement)
        if self.unit == "span":
            inserted = jnp.minimum(inserted, tokens - length)
            ids, length = self._with_noise(of_inserted, ids, length, inserted, tokens, vocabulary)
        return ids, length

    def _with_noise(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, count: jax.Array, room: int, vocabulary: Vocabulary
    ) -> tuple[jax.Array, jax.Array]:
        """The row with so many masks and random tokens inserted, int [room], and its length."""
        of_places, of_tokens = jax.random.split(key)
        random = jnp.array([math.ceil(self.random_share * number) for number in range(room + 1)])[count]
        tokens = self._random(of_tokens, room, vocabulary)
        inserted = jnp.where(jnp.arange(room) < random, tokens, vocabulary.mask)
        return noise.with_inserted(ids, length, strict_draws(of_places, room), count, inserted)

    def _inserted(self, tokens: int) -> int:
        return math.ceil(self.insert * tokens)

    def _random(self, key: jax.Array, count: int, vocabulary: Vocabulary) -> jax.Array:
        token = jax.random.randint(key, (count,), 0, vocabulary.size - 1, jnp.int32)
        return token + (token >= vocabulary.cls)


def _stream(ids: jax.Array, length: jax.Array) -> Stream:
    return Stream(ids, (jnp.arange(len(ids)) < length).astype(jnp.int32))
