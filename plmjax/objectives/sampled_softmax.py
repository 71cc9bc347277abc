"""The softmax over a few tokens that are drawn, in place of all (Jean et al., ACL 2015, arXiv 1412.2007).

The softmax is over a token and S that are drawn. The score of a token k is lowered by how likely it is drawn:

    score'(k) = score(k) - log(expected number of times that k is drawn)

so that the softmax over the target and the draws has nearly the gradient of the softmax over all tokens. The draws are
log-uniform, p(k) = log((k + 2) / (k + 1)) / log(V + 1): near to the frequencies of tokens that are numbered by them.
"""

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.scores import TokenScores
from plmjax.errors import UserError
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


@flax.struct.dataclass
class SampledScores(TokenScores):
    """Scores whose cross-entropy is taken over the target and the draws. The logits stay those of the vocabulary.

    scores: of the whole vocabulary.
    draws: of the same vocabulary.
    """

    scores: VocabularyScores
    draws: Draws

    def logits(self) -> jax.Array:
        """As `scores`."""
        return self.scores.logits()

    def last_logits(self) -> jax.Array:
        """As `scores`."""
        return self.scores.last_logits()

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """int [B T] -> nats of the targets among the draws and themselves, float32 [B T]; if no draw scores higher.

        A draw that is the target itself does not count (remove_accidental_hits of tf.nn.sampled_softmax_loss).
        """
        of_target = self.scores.target_logits(targets) - self.draws.log_expected(targets)
        of_draws = self.scores.token_logits(self.draws.ids) - self.draws.log_expected(self.draws.ids)
        of_draws = jnp.where(targets[..., None] == self.draws.ids, -jnp.inf, of_draws)
        nats = jnp.logaddexp(of_target, jax.nn.logsumexp(of_draws, axis=-1)) - of_target
        return nats, of_target >= jnp.max(of_draws, axis=-1)
