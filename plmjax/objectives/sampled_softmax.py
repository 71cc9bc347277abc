"""The softmax over a few tokens that are drawn, in place of all (Jean et al., ACL 2015, arXiv 1412.2007).

The softmax is over a token and S that are drawn. The score of a token k is lowered by how likely it is drawn:

    score'(k) = score(k) - log(expected number of times that k is drawn)

so that the softmax over the target and the draws has nearly the gradient of the softmax over all tokens. The draws are
log-uniform, p(k) = log((k + 2) / (k + 1)) / log(V + 1): near to the frequencies of tokens that are numbered by them.
"""

import functools
from collections.abc import Sequence

import chex
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.layers.product import float32_product
from plmjax.layers.words.vocabulary_scores import VocabularyScores


@flax.struct.dataclass
class Draws:
    """Different tokens, drawn log-uniformly.

    ids: int32 [S].
    tries: float32 scalar, about how many draws with repetition would have brought S different tokens.
    vocabulary: V.
    """

    ids: jax.Array
    tries: jax.Array
    vocabulary: int = flax.struct.field(pytree_node=False)

    def log_expected(self, ids: jax.Array) -> jax.Array:
        """The logarithm of how often each of these tokens is among the draws, float32, shaped as int `ids`."""
        return jnp.log(-jnp.expm1(-self.tries * log_uniform(ids, self.vocabulary)))


def log_uniform(ids: jax.Array, vocabulary: int) -> jax.Array:
    """p(k) of int ids, float32 of the same shape; the sum over 0..vocabulary-1 is 1."""
    return jnp.log1p(1 / (ids.astype(jnp.float32) + 1)) / jnp.log1p(jnp.float32(vocabulary))


def draw(key: jax.Array, vocabulary: int, count: int) -> Draws:
    """`count` different tokens of `vocabulary`: count is below it.

    Every token has a clock that rings after an exponential time of rate p(k); the first to ring are drawn. This is the
    order in which draws with repetition bring new tokens, and the time at which the last one rings counts the draws.

    Deviation: TensorFlow's log_uniform_candidate_sampler draws until it has S different tokens, and counts its draws
    exactly.
    """
    times = jax.random.exponential(key, (vocabulary,)) / log_uniform(jnp.arange(vocabulary), vocabulary)
    earliest, ids = jax.lax.top_k(-times, count)
    return Draws(ids.astype(jnp.int32), -earliest[-1], vocabulary)


def check_order(counts: np.ndarray, special: Sequence[int]) -> None:
    """Raises UserError where tokens are not numbered from the frequent to the rare: rare ones would be drawn most.

    The order need not be exact, as that of another text is not: the first tenth of the tokens must have half of the
    occurrences that the most frequent tenth has.

    counts: int [V], occurrences in the training text. special: ids that stand in no order.
    """
    words = np.delete(counts, list(special))
    tenth = -(-len(words) // 10)
    first, most = (np.sum(part[:tenth]) / max(words.sum(), 1) for part in (words, -np.sort(-words)))
    if 2 * first < most:
        raise UserError(
            f"Expected a vocabulary in the order of frequency for --objective.negatives, found that its first tenth is "
            f"{first:.1%} of the text and the most frequent tenth {most:.1%}; set --tokenizer.kind word, "
            f"which has this order, or --objective.negatives 0 to draw nothing."
        )


def sampled_cross_entropy(scores: VocabularyScores, targets: jax.Array, draws: Draws) -> jax.Array:
    """Nats of int targets [B T] among the draws and themselves, float32 [B T].

    A draw that is the target itself does not count (remove_accidental_hits of tf.nn.sampled_softmax_loss).
    """
    chex.assert_shape(scores.hidden, (*targets.shape, scores.table.shape[1]))
    hidden, table = scores.hidden, scores.table
    target, drawn = (table[ids].astype(hidden.dtype) for ids in (targets, draws.ids))
    of_target = float32_product(functools.partial(jnp.einsum, "BTD,BTD->BT"), hidden, target)
    of_draws = float32_product(functools.partial(jnp.einsum, "BTD,SD->BTS"), hidden, drawn)
    if scores.bias is not None:
        of_target += scores.bias[targets]
        of_draws += scores.bias[draws.ids]
    of_target -= draws.log_expected(targets)
    of_draws -= draws.log_expected(draws.ids)
    of_draws = jnp.where(targets[..., None] == draws.ids, -jnp.inf, of_draws)
    return jnp.logaddexp(of_target, jax.nn.logsumexp(of_draws, axis=-1)) - of_target
