"""ALBERT's pretraining objective: n-gram masking, plus sentence order prediction.

Runs of n words are masked together, p(n) = 1/n / (1/1 + ... + 1/N) for n up to N = 3 (ALBERT section 4.1;
google-research/albert create_pretraining_data.py). Words are visited in random order. Each begins a run of a random
length, which is shortened to the rest of the sequence's budget. A run that meets an earlier run is skipped. A run may
reach across [SEP], as in the released code.

Deviation: a continuation that follows [CLS] or [SEP] begins a word, as in `masked_language_model`.
Deviation: SentencePiece's pieces without a meta-space continue a word, except punctuation marks. In the released code
pieces with digits or letters beyond a to z begin a word as well.
"""

import dataclasses
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.choosing import sequence_lengths, sums_in_groups
from plmjax.objectives.masked_language_model import word_starts
from plmjax.objectives.sentence_order import SENTENCE_ORDER
from plmjax.objectives.sentence_pairs import MaskedLanguageModelWithPairs, PairLabels


@dataclasses.dataclass(frozen=True)
class AlbertPretraining(MaskedLanguageModelWithPairs):
    """Mean nats of the masked tokens + mean nats of the sentence order (google-research/albert run_pretraining.py).

    Raises:
        UserError: the maximum length of a run is less than one word.
    """

    pairs: ClassVar[PairLabels] = SENTENCE_ORDER

    max_predictions: int = 20
    """Maximum number of predictions in a sequence; 0 derives it from `rate` and the longest sequence."""
    whole_word: bool = True
    """Hide runs of whole words instead of runs of single tokens."""
    ngram: int = 3
    """Maximum number of words in a run, N."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ngram < 1:
            raise UserError(f"Expected --objective.ngram of at least 1, found {self.ngram}; change it.")

    def choose(
        self, key: jax.Array, ids: jax.Array, segments: jax.Array, *, vocabulary: Vocabulary, constants: Any = ()
    ) -> jax.Array:
        """Return bool [T]: the tokens of a row to predict."""
        visit, run, size = jax.random.split(key, 3)
        length = len(ids)
        eligible = self._eligible(ids, segments, vocabulary)
        starts = word_starts(ids, segments, eligible, vocabulary) if self.whole_word else eligible
        words = jnp.where(eligible, jnp.cumsum(starts), 0)
        budget = self.budget(size, sequence_lengths(segments), segments)
        budget = jnp.minimum(budget, self.max_predictions) if self.max_predictions else budget
        runs = 1 + jax.random.categorical(run, -jnp.log(jnp.arange(1, self.ngram + 1)), shape=(length,))
        order = jax.random.permutation(visit, length)
        return draw_runs(order, runs, words, starts=starts, segments=segments, budget=budget, longest=self.ngram)


def draw_runs(
    order: jax.Array,
    runs: jax.Array,
    words: jax.Array,
    *,
    starts: jax.Array,
    segments: jax.Array,
    budget: jax.Array,
    longest: int,
) -> jax.Array:
    """Choose runs of words: visit the words of a row by `order`, lowest first, and take the run of each if it fits.

    All arrays are [T]; the first token of a word represents the word. order: int, no two equal. runs: int, number of
    words in the run that begins here, at most `longest`. words: int, the index of a token's word in the row, 0 for
    tokens that are never chosen. starts: bool, first tokens. segments: int, the sequence of a token. budget: int,
    number of predictions of a token's sequence.

    A round decides all words of a sequence up to the first word whose run is shortened by earlier runs of the round.
    Only the last words that fit into a budget take a round each.

    Returns:
        bool [T], the tokens taken.
    """
    chex.assert_rank(order, 1)
    chex.assert_equal_shape([order, runs, words, starts, segments, budget])
    length = len(order)
    longest = min(longest, length)
    sizes = jnp.zeros(length + 1, jnp.int32).at[words].add(1)[1:]  # [W], W = T: number of tokens of word 1, 2, ...
    number = jnp.where(starts, words, length + 1)
    fields = (number, order, runs, segments, budget, starts)
    _, order, runs, segments, budget, exists = jax.lax.sort(fields, num_keys=1)  # [W], from here on
    segments = jnp.where(exists, segments, -1)
    same_sequence = jnp.stack([exists & (_ahead(segments, d, -1) == segments) for d in range(longest)])  # [n W]
    ahead = jnp.stack([_ahead(sizes, d, 0) for d in range(longest)])
    sizes = jnp.cumsum(same_sequence * ahead, axis=0)  # [n W]: number of tokens of n words from each word on
    counts = jnp.arange(1, longest + 1)[:, None]
    visited = jax.lax.sort((segments, order, jnp.arange(length)), num_keys=2)[2]  # the words, sequence by sequence
    visit = jnp.argsort(visited)

    def sums(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return two sums: over a word and the words of its sequence visited before; and over all its sequence."""
        upto, total = sums_in_groups(values[visited], segments[visited])
        return upto[visit], total[visit]

    def shortened(left: jax.Array) -> jax.Array:
        return jnp.minimum(runs, jnp.sum(sizes <= left, axis=0))

    def decide(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        taken, waiting, left = state
        run = shortened(left)
        reached = same_sequence & (counts <= run)  # [n W]
        chosen = _first_disjoint(order, waiting & (run > 0), taken, reached)
        cost = jnp.sum(sizes * (counts == run) * chosen, axis=0)
        upto, _ = sums(cost)
        changed = waiting & (shortened(left - (upto - cost)) != run)
        decided = waiting & (sums(changed.astype(jnp.int32))[0] == 0)
        chosen &= decided
        return taken | _cover(chosen, reached), waiting & ~decided, left - sums(cost * chosen)[1]

    start = jnp.zeros_like(exists), exists, budget
    taken, _, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), decide, start)
    return (words > 0) & taken[jnp.maximum(words - 1, 0)]


def _first_disjoint(order: jax.Array, candidates: jax.Array, taken: jax.Array, reached: jax.Array) -> jax.Array:
    """Return bool [W]: the candidates taken in a visit by `order`, whose runs meet no run taken before.

    A candidate is decided as soon as no undecided earlier candidate meets its run.

    Args:
        taken: bool [W], words in runs taken already.
        reached: bool [n W], true if a run includes the n-th word from its first.
    """
    longest, last = len(reached), jnp.iinfo(order.dtype).max

    def decide(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        chosen, undecided, taken = state
        undecided &= ~jnp.any(jnp.stack([reached[d] & _ahead(taken, d, False) for d in range(longest)]), axis=0)
        visit, earliest = jnp.where(undecided, order, last), jnp.full_like(order, last)
        for d in range(1, longest):
            earliest = jnp.minimum(earliest, jnp.where(reached[d], _ahead(visit, d, last), last))
            earliest = jnp.minimum(earliest, _behind(jnp.where(reached[d], visit, last), d, last))
        now = undecided & (order < earliest)
        return chosen | now, undecided & ~now, taken | _cover(now, reached)

    start = jnp.zeros_like(candidates), candidates, taken
    return jax.lax.while_loop(lambda state: jnp.any(state[1]), decide, start)[0]


def _cover(chosen: jax.Array, reached: jax.Array) -> jax.Array:
    """Return bool [W]: the words in the runs of the chosen words."""
    return jnp.any(jnp.stack([_behind(chosen & reached[d], d, False) for d in range(len(reached))]), axis=0)


def _ahead(values: jax.Array, distance: int, fill: int) -> jax.Array:
    """Return [W]: for each word, the value `distance` words after it."""
    return jnp.concatenate([values[distance:], jnp.full(distance, fill, values.dtype)])


def _behind(values: jax.Array, distance: int, fill: int) -> jax.Array:
    """Return [W]: for each word, the value `distance` words before it."""
    return jnp.concatenate([jnp.full(distance, fill, values.dtype), values[: len(values) - distance]])
