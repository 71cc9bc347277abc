"""ALBERT's pretraining task: runs of words are hidden, and sentence order prediction is added.

Runs of n words are hidden together, p(n) = 1/n / (1/1 + ... + 1/N) for n up to N = 3 (ALBERT section 4.1;
google-research/albert create_pretraining_data.py): words are visited in random order, and each begins a run whose
length is drawn, shortened to what is left of the sequence's budget, and passed over where it meets a run taken before.
A run may reach across [SEP], as it does there.

Deviation: a continuation that follows [CLS] or [SEP] begins a word, as in `masked_language_model`.
Deviation: SentencePiece's pieces without a meta-space continue a word, punctuation marks excepted; in the released code
those with digits or letters beyond a to z begin one as well.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from plmjax.errors import UserError
from plmjax.objectives.masked_language_model import eligible_tokens, word_starts
from plmjax.objectives.sentence_order import SENTENCE_ORDER
from plmjax.objectives.sentence_pairs import MaskedTokensAndPairs, PairLabels
from plmjax.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class AlbertPretraining(MaskedTokensAndPairs):
    """mean nats of the hidden tokens + mean nats of the sentences' order (google-research/albert run_pretraining.py).

    Raises:
        UserError: runs of no word.
    """

    pairs: ClassVar[PairLabels] = SENTENCE_ORDER

    max_predictions: int = 20
    """Most predictions in a sequence; 0 is what `rate` makes of the longest one."""
    whole_word: bool = True
    """Hide runs of whole words instead of runs of single tokens."""
    ngram: int = 3
    """Most words in a run, N."""

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.ngram < 1:
            raise UserError(f"Expected --objective.ngram of at least 1, found {self.ngram}.")

    def _choose(self, key: jax.Array, ids: jax.Array, segments: jax.Array, vocabulary: Vocabulary) -> jax.Array:
        """bool [T]: which tokens of a row are to be predicted."""
        visit, run, size = jax.random.split(key, 3)
        length = len(ids)
        eligible = eligible_tokens(ids, segments, vocabulary)
        starts = word_starts(ids, segments, eligible, vocabulary) if self.whole_word else eligible
        words = jnp.where(eligible, jnp.cumsum(starts), 0)
        budget = self._budget(size, jnp.sum(segments[:, None] == segments[None, :], axis=1), segments)
        budget = jnp.minimum(budget, self.max_predictions) if self.max_predictions else budget
        runs = 1 + jax.random.categorical(run, -jnp.log(jnp.arange(1, self.ngram + 1)), shape=(length,))
        order = jax.random.permutation(visit, length)
        most = min(max(1, round(self.rate * length)), self.max_predictions or length)
        return draw_runs(order, runs, words, starts, segments, budget, self.ngram, most)


def draw_runs(
    order: jax.Array,
    runs: jax.Array,
    words: jax.Array,
    starts: jax.Array,
    segments: jax.Array,
    budget: jax.Array,
    longest: int,
    most: int,
) -> jax.Array:
    """Visits the words of a row by `order`, lowest first, and takes of each the run that fits.

    All [T]; a word is known by its first token. order: int, no two equal. runs: int, words to take from here, at most
    `longest`. words: int, the number of a token's word along the row, 0 for tokens never chosen. starts: bool, first
    tokens. segments: int, which sequence a token is of. budget: int, predictions of a token's sequence, at most `most`.

    Returns:
        bool [T], the tokens taken.
    """
    same = segments[:, None] == segments[None, :]  # [t u]
    within = same & starts[:, None] & (words > 0)[None, :]
    ahead = jnp.where(within, words[None, :] - words[:, None], -1)  # [t u] how many words u is behind t
    counts = jnp.arange(1, longest + 1)
    sizes = jnp.sum((ahead[..., None] >= 0) & (ahead[..., None] < counts), axis=1)  # [t n] tokens of n words from t

    # A trip takes the next run of every sequence. The words visited before it did not fit then, and never will.
    def take(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, waiting = state
        left = budget - jnp.sum(same & taken[None, :], axis=1)
        shortened = jnp.minimum(runs, jnp.sum(sizes <= left[:, None], axis=1))
        run = (ahead >= 0) & (ahead < shortened[:, None])
        fits = waiting & (shortened > 0) & ~jnp.any(run & taken[None, :], axis=1)
        place = jnp.min(jnp.where(same & fits[None, :], order[None, :], len(order)), axis=1)
        taken = taken | jnp.any(run & (fits & (order == place))[:, None], axis=0)
        return taken, waiting & (order > place)

    return jax.lax.fori_loop(0, most, take, (jnp.zeros_like(starts), starts))[0]
