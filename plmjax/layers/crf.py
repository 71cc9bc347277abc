"""Linear-chain conditional random field: the labels of a sentence together (Lafferty, McCallum and Pereira, ICML 2001).

    score(y) = start[y_1] + sum_t emission_t[y_t] + sum_t transition[y_{t-1}, y_t] + end[y_n]
    p(y)     = exp(score(y)) / Z,   Z the sum over all sequences of labels

Z, the most likely sequence and the probability of each label are exact. Each is computed by one scan over the row. Rows
hold any number of sentences. Tokens that are not words of a sentence (padding, later pieces of a word, marks) are
skipped. So the values of a sentence do not depend on the rest of its row.
"""

from typing import NamedTuple

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.mask_terms import EXCLUDED


class Possible(NamedTuple):
    """The labels that a label scheme with Y labels allows.

    start: true for labels that a sentence may begin with, [Y].
    transitions: true for pairs (label, next label), [Y Y].
    end: true for labels that a sentence may end with, [Y].
    """

    start: tuple[bool, ...]
    transitions: tuple[tuple[bool, ...], ...]
    end: tuple[bool, ...]


@flax.struct.dataclass
class Scores:
    """The scores of a chain.

    start, end: float32 [Y].
    transitions: float32 [Y Y], from the previous label to the next label.
    """

    start: jax.Array
    transitions: jax.Array
    end: jax.Array


@flax.struct.dataclass
class Chain:
    """Masks of the words in rows, bool [B T].

    words: true at all words of sentences.
    first: true at the first word of each sentence.
    last: true at the last word of each sentence. A sentence whose end was truncated has no last word and no end score.
    """

    words: jax.Array
    first: jax.Array
    last: jax.Array


class TransitionScores(nn.Module):
    """Learned scores, initialized to zero: at first the probability of a label depends only on its emission."""

    possible: Possible

    @nn.compact
    def __call__(self) -> Scores:
        """Return the scores; `EXCLUDED` for transitions that the scheme does not allow."""

        def scores(name: str, allowed: tuple) -> jax.Array:
            allowed = jnp.array(allowed, bool)
            init = nn.with_logical_partitioning(nn.initializers.zeros, (None,) * allowed.ndim)
            return jnp.where(allowed, self.param(name, init, allowed.shape), EXCLUDED)

        return Scores(*(scores(name, allowed) for name, allowed in self.possible._asdict().items()))


def nats(emissions: jax.Array, labels: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """Return -log p(labels), divided into one part per word: float [B T Y], int [B T] -> float32 [B T], 0 elsewhere.

    Only the sum over the words of a sentence has a meaning.
    """
    chex.assert_shape(labels, emissions.shape[:2])
    chex.assert_type(labels, int)
    chosen = jnp.take_along_axis(_at_words(emissions, scores, chain), labels[..., None], axis=-1)[..., 0]
    length = labels.shape[1]
    latest = jax.lax.cummax(jnp.where(chain.words, jnp.arange(length), 0), axis=1)
    before = jnp.take_along_axis(labels, jnp.pad(latest[:, :-1], ((0, 0), (1, 0))), axis=1)
    arrived = jnp.where(chain.first, 0.0, scores.transitions[before, labels])
    return jnp.where(chain.words, log_partition(emissions, scores, chain) - chosen - arrived, 0.0)


def log_partition(emissions: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """Return log Z, divided into one part per word: float [B T Y] -> float32 [B T], 0 elsewhere.

    This is the forward algorithm, with sums that are normalised at every word.
    """

    def step(before: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        own, word, first = inputs  # [B Y], [B 1], [B 1]
        arrived = jax.nn.logsumexp(before[:, :, None] + scores.transitions, axis=1)
        after = jnp.where(first, 0.0, arrived) + own
        added = jax.nn.logsumexp(after, axis=-1, keepdims=True)
        return jnp.where(word, after - added, before), jnp.where(word, added, 0.0)

    over_time = _over_time(emissions, scores, chain)
    _, added = jax.lax.scan(step, jnp.zeros_like(over_time[0][0]), over_time)
    return added[..., 0].T


def marginals(emissions: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """Return the marginal probability of every label at every word: float32 [B T Y], 0 elsewhere.

    Marginals are the gradient of log Z with respect to the emissions. The gradient of the forward algorithm is the
    backward algorithm.
    """
    return jax.grad(lambda own: jnp.sum(log_partition(own, scores, chain)))(emissions.astype(jnp.float32))


def viterbi(emissions: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """Return the most likely sequence of labels (Viterbi's algorithm): int32 [B T].

    The labels are valid at word positions only.
    """

    def forward(before: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        own, word, first = inputs
        arriving = before[:, :, None] + jnp.where(first[..., None], 0.0, scores.transitions)  # [B from to]
        after = jnp.max(arriving, axis=1) + own
        after -= jnp.max(after, axis=-1, keepdims=True)
        came_from = jnp.where(word, jnp.argmax(arriving, axis=1), jnp.arange(before.shape[1]))
        return jnp.where(word, after, before), came_from

    def backward(label: jax.Array, came_from: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.take_along_axis(came_from, label[:, None], axis=1)[:, 0], label

    over_time = _over_time(emissions, scores, chain)
    last, came_from = jax.lax.scan(forward, jnp.zeros_like(over_time[0][0]), over_time)
    _, labels = jax.lax.scan(backward, jnp.argmax(last, axis=-1), came_from, reverse=True)
    return labels.T.astype(jnp.int32)


def _at_words(emissions: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """Return emission + start score + end score of each position: float32 [B T Y].

    These are the terms that depend on one word only.
    """
    chex.assert_shape([chain.words, chain.first, chain.last], emissions.shape[:2])
    begun = jnp.where(chain.first[..., None], scores.start, 0.0)
    ended = jnp.where(chain.last[..., None], scores.end, 0.0)
    return emissions.astype(jnp.float32) + begun + ended


def _over_time(emissions: jax.Array, scores: Scores, chain: Chain) -> tuple[jax.Array, ...]:
    """Return the inputs of a scan over tokens: scores [T B Y], and the masks of words and of first words, [T B 1].

    The scan reads the sentences of a row as one chain. Every transition between two sentences scores 0.
    """
    masks = (chain.words[..., None], chain.first[..., None])
    return tuple(jnp.moveaxis(x, 1, 0) for x in (_at_words(emissions, scores, chain), *masks))
