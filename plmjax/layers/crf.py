"""Linear-chain conditional random field: the labels of a sentence together (Lafferty, McCallum and Pereira, ICML 2001).

    score(y) = start[y_1] + sum_t emission_t[y_t] + sum_t transition[y_{t-1}, y_t] + end[y_n]
    p(y)     = exp(score(y)) / Z,   Z the sum over all sequences of labels

Z, the likeliest sequence and the probability of each label are exact, each from one scan over the row. Rows hold any
number of sentences, and tokens that are no words of one (padding, later pieces of a word, marks) are passed over: a
sentence has the same values whatever shares its row.
"""

from typing import NamedTuple

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.visibility import EXCLUDED


class Possible(NamedTuple):
    """What a label scheme allows of Y labels: the first of a sentence [Y], one after another [Y Y], the last [Y]."""

    start: tuple[bool, ...]
    transitions: tuple[tuple[bool, ...], ...]
    end: tuple[bool, ...]


@flax.struct.dataclass
class Scores:
    """start, end: float32 [Y]. transitions: [Y Y], from the label before to the label after."""

    start: jax.Array
    transitions: jax.Array
    end: jax.Array


@flax.struct.dataclass
class Chain:
    """Where the sentences of rows are, bool [B T]: their words, the first and the last of each.

    A sentence whose end was cut off has no last word; its end has no score.
    """

    words: jax.Array
    first: jax.Array
    last: jax.Array


class TransitionScores(nn.Module):
    """Learned scores, zero at first, so that every possible sequence is as likely as its emissions say."""

    possible: Possible

    @nn.compact
    def __call__(self) -> Scores:
        """The scores; `EXCLUDED` for what the scheme does not allow."""

        def scores(name: str, allowed: tuple) -> jax.Array:
            allowed = jnp.array(allowed, bool)
            init = nn.with_logical_partitioning(nn.initializers.zeros, (None,) * allowed.ndim)
            return jnp.where(allowed, self.param(name, init, allowed.shape), EXCLUDED)

        return Scores(*(scores(name, allowed) for name, allowed in self.possible._asdict().items()))


def nats(emissions: jax.Array, labels: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """Parts of -log p(labels) at the words: float [B T Y], int [B T] -> float32 [B T], 0 elsewhere.

    Only the sum over a sentence has a meaning.
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
    """Parts of log Z at the words, as `nats`: the forward algorithm, whose sums are normalised at every word."""

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
    """The probability of every label at every word, whatever the others are: float32 [B T Y], 0 elsewhere.

    It is the gradient of log Z with respect to the emissions: that of the forward algorithm is the backward algorithm.
    """
    return jax.grad(lambda own: jnp.sum(log_partition(own, scores, chain)))(emissions.astype(jnp.float32))


def likeliest(emissions: jax.Array, scores: Scores, chain: Chain) -> jax.Array:
    """The sequence of labels with the highest score (Viterbi's algorithm): int32 [B T], of a meaning at words alone."""

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
    """The emissions with the scores of beginning and ending there: all that depends on one word, float32 [B T Y]."""
    chex.assert_shape([chain.words, chain.first, chain.last], emissions.shape[:2])
    begun = jnp.where(chain.first[..., None], scores.start, 0.0)
    ended = jnp.where(chain.last[..., None], scores.end, 0.0)
    return emissions.astype(jnp.float32) + begun + ended


def _over_time(emissions: jax.Array, scores: Scores, chain: Chain) -> tuple[jax.Array, ...]:
    """What a scan over words reads: [T B Y], whether there is a word and whether it is a first one, [T B 1].

    The sentences of a row are one chain for it: between two of them every transition scores 0.
    """
    masks = (chain.words[..., None], chain.first[..., None])
    return tuple(jnp.moveaxis(x, 1, 0) for x in (_at_words(emissions, scores, chain), *masks))
