"""Scores of the next token by an adaptive softmax (Grave et al., arXiv 1609.04309).

Tokens are numbered by their frequency, the most frequent first, and divided into clusters. The clusters after the first
one are the tails. The head has the tokens of the first cluster and one entry for each tail. A token of a tail is chosen
in two steps:

    log p(token) = log softmax(head)[token]                                            a token of the first cluster
    log p(token) = log softmax(head)[entry of cluster i] + log softmax(tail_i)[token]  a token of a tail

A loss needs the scores of a tail only at positions whose target is in this tail, which are few. Shapes are static, so
scores are computed at a fixed number of positions of each device, the capacity of the tail: twice the fraction of
tokens that Zipf's law predicts. If a batch has more such positions, the tail scores all positions, so that the result
is always exact. The entries are in the order of their clusters, as in transformers.

Deviation: kimiyoung/transformer-xl utils/proj_adaptive_softmax.py reads the entries in the opposite order, so that the
first tail has the last entry. Only the order of parameters differs: reverse the rows of such a checkpoint.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import chex
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.scores import TokenScores
from plmjax.layers.partitioning import shard_counts
from plmjax.layers.words.vocabulary_scores import VocabularyScores

MARGIN = 2.0
"""Capacity of a tail, as a multiple of its fraction of tokens by Zipf's law."""


def tail_capacity(first: int, end: int, vocab_size: int) -> float:
    """Return the capacity of the tail of tokens `first` to `end` - 1, as a fraction of the positions."""
    return min(MARGIN * math.log(end / first) / math.log(vocab_size), 1.0)


@flax.struct.dataclass
class Cluster:
    """The output layer of a cluster: scores are (hidden . projection) . table + bias.

    table: float32 [V E].
    bias: float32 [V].
    projection: float32 [E D]; None if E is D.
    """

    table: jax.Array
    bias: jax.Array
    projection: jax.Array | None = None

    def scores(self, hidden: jax.Array) -> VocabularyScores:
        """Return the scores within the cluster for [B T D]."""
        if self.projection is not None:
            hidden = jnp.einsum("BTD,ED->BTE", hidden, self.projection.astype(hidden.dtype))
        return VocabularyScores(hidden, self.table, self.bias)


@flax.struct.dataclass
class AdaptiveScores(TokenScores):
    """The adaptive softmax. Logits are log probabilities.

    hidden: [B T D], in the dtype of the products.
    head: the cluster of the most frequent tokens, followed by an entry for each tail.
    tails: the other clusters.
    """

    hidden: jax.Array
    head: Cluster
    tails: tuple[Cluster, ...]

    @property
    def frequent(self) -> int:
        """Number of tokens of the first cluster."""
        return len(self.head.table) - len(self.tails)

    def logits(self) -> jax.Array:
        """Return the log probabilities of all tokens, float32 [B T V]."""
        head = jax.nn.log_softmax(self.head.scores(self.hidden).logits())
        found = [head[..., : self.frequent]]
        for number, tail in enumerate(self.tails, start=self.frequent):
            found.append(head[..., number, None] + jax.nn.log_softmax(tail.scores(self.hidden).logits()))
        return jnp.concatenate(found, axis=-1)

    def last_logits(self) -> jax.Array:
        """Return the log probabilities of the last position, float32 [B V]."""
        return self.replace(hidden=self.hidden[:, -1:]).logits()[:, 0]

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the cross-entropy and the hits for targets, int [B T], as `TokenScores` does.

        A hit means: no entry of the head scores higher than the target or its cluster, and no token of this cluster
        scores higher than the target.
        """
        entries, firsts = self._entries(targets)
        nats, hits = self.head.scores(self.hidden).cross_entropy(entries)
        return self._with_tails(targets, entries, firsts, nats=nats, hits=hits)

    def weighted_cross_entropy(self, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return sum(weights x nats), float32 scalar, and the hits, as `cross_entropy` does."""
        entries, firsts = self._entries(targets)
        loss, hits = self.head.scores(self.hidden).weighted_cross_entropy(entries, weights)
        nats, hits = self._with_tails(targets, entries, firsts, nats=jnp.zeros(targets.shape), hits=hits)
        return loss + jnp.sum(weights * nats), hits

    def _entries(self, targets: jax.Array) -> tuple[jax.Array, list[int]]:
        """Return the entry of the head for each target, int [B T], and the first token of each tail."""
        chex.assert_shape(self.hidden, (*targets.shape, None))
        chex.assert_type(targets, int)
        sizes = [self.frequent, *(len(tail.table) for tail in self.tails)]
        firsts = [sum(sizes[:number]) for number in range(1, len(sizes))]
        past = sum((targets >= first).astype(targets.dtype) for first in firsts)
        return jnp.where(past > 0, self.frequent + past - 1, targets), firsts

    def _with_tails(
        self, targets: jax.Array, entries: jax.Array, firsts: list[int], *, nats: jax.Array, hits: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Add the nats of the tails, and clear hits that the tails miss."""
        everything = firsts[-1] + len(self.tails[-1].table)
        for number, (first, tail) in enumerate(zip(firsts, self.tails, strict=True), start=self.frequent):
            fraction = tail_capacity(first, first + len(tail.table), everything)
            needed = entries == number
            own = jnp.clip(targets - first, 0, len(tail.table) - 1)
            tail_nats, likeliest = _tail_cross_entropy(fraction, self.hidden, tail, targets=own, needed=needed)
            nats, hits = nats + tail_nats, hits & (likeliest | ~needed)
        return nats, hits


def _tail_cross_entropy(
    fraction: float, hidden: jax.Array, tail: Cluster, *, targets: jax.Array, needed: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the cross-entropy within a tail and the hits where `needed`, bool [B T]; 0 and False elsewhere.

    fraction: the capacity, as a fraction of the positions of each device.
    """
    (devices,) = shard_counts((len(hidden),), ("batch",))
    grouped = (x.reshape(devices, -1, *x.shape[2:]) for x in (hidden, targets, needed))
    nats, hits = _cross_entropy(fraction, tail, *grouped)
    return nats.reshape(targets.shape), hits.reshape(targets.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(
    fraction: float, tail: Cluster, hidden: jax.Array, targets: jax.Array, needed: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute `_tail_cross_entropy` of arrays [devices, B*T/devices, ...]."""
    return _where_needed(fraction, needed, lambda method: method(tail, hidden, targets, needed))


def _forward(fraction: float, *inputs: Any) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    return _cross_entropy(fraction, *inputs), inputs


def _backward(fraction: float, kept: tuple, cotangents: tuple[jax.Array, Any]) -> tuple:
    """Compute the scores again. Otherwise `cond` would keep the residuals of both branches."""
    tail, hidden, targets, needed = kept

    def transposed(method: Callable) -> tuple[Cluster, jax.Array]:
        return jax.vjp(lambda *learned: method(*learned, targets, needed)[0], tail, hidden)[1](cotangents[0])

    return *_where_needed(fraction, needed, transposed), None, None


_cross_entropy.defvjp(_forward, _backward)


def _where_needed(fraction: float, needed: jax.Array, compute: Callable[[Callable], Any]) -> Any:
    """Return compute(method); the method scores as many positions as the capacity if these suffice, otherwise all."""
    capacity = math.ceil(fraction * needed.shape[1])
    if capacity >= needed.shape[1]:
        return compute(_score_all)
    places = jnp.argsort(~needed, axis=1, stable=True)[:, :capacity]
    fits = jnp.max(jnp.sum(needed, axis=1)) <= capacity
    return jax.lax.cond(
        fits, lambda: compute(functools.partial(_score_few, places=places)), lambda: compute(_score_all)
    )


def _score_all(tail: Cluster, hidden: jax.Array, targets: jax.Array, needed: jax.Array) -> tuple[jax.Array, jax.Array]:
    nats, hits = tail.scores(hidden).cross_entropy(targets)
    return jnp.where(needed, nats, 0.0), needed & hits


def _score_few(
    tail: Cluster, hidden: jax.Array, targets: jax.Array, needed: jax.Array, *, places: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Score the positions at `places`, int [devices capacity], which include all that are needed."""
    chosen = (
        jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)
        for x in (hidden, targets, needed)
    )
    found = _score_all(tail, *chosen)
    device = jnp.arange(len(places))[:, None]
    return tuple(jnp.zeros(needed.shape, x.dtype).at[device, places].set(x, unique_indices=True) for x in found)
