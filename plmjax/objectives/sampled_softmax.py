"""The softmax over a few sampled tokens instead of all (Jean et al., ACL 2015, arXiv 1412.2007).

The softmax is over a token and S samples. The score of a token k is lowered by its expected number of samples:

    score'(k) = score(k) - log(expected number of times that k is drawn)

So the softmax over the target and the samples has nearly the gradient of the softmax over all tokens. The samples are
log-uniform, p(k) = log((k + 2) / (k + 1)) / log(V + 1). This is close to the token frequencies if ids are numbered from
frequent to rare.
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
    """Different tokens, sampled log-uniformly.

    ids: int32 [S].
    tries: float32 scalar, the approximate number of draws with repetition that give S different tokens.
    vocabulary: V.
    """

    ids: jax.Array
    tries: jax.Array
    vocabulary: int = flax.struct.field(pytree_node=False)

    def log_expected(self, ids: jax.Array) -> jax.Array:
        """Return the logarithm of each token's expected number of samples, float32, in the shape of int `ids`."""
        return jnp.log(-jnp.expm1(-self.tries * log_uniform(ids, self.vocabulary)))


def log_uniform(ids: jax.Array, vocabulary: int) -> jax.Array:
    """Return p(k) of int ids, float32 of the same shape; the sum over 0..vocabulary-1 is 1."""
    return jnp.log1p(1 / (ids.astype(jnp.float32) + 1)) / jnp.log1p(jnp.float32(vocabulary))


def draw(key: jax.Array, vocabulary: int, count: int) -> Draws:
    """Sample `count` different tokens of `vocabulary`. count must be less than vocabulary.

    Every token gets an exponentially distributed time with rate p(k); the tokens with the smallest times are sampled.
    Draws with repetition give new tokens in the same order, and the largest of these times estimates the number of
    draws.

    Deviation: TensorFlow's log_uniform_candidate_sampler draws until it has S different tokens, and counts its draws
    exactly.
    """
    times = jax.random.exponential(key, (vocabulary,)) / log_uniform(jnp.arange(vocabulary), vocabulary)
    earliest, ids = jax.lax.top_k(-times, count)
    return Draws(ids.astype(jnp.int32), -earliest[-1], vocabulary)


def check_order(counts: np.ndarray, special: Sequence[int]) -> None:
    """Check that tokens are numbered from frequent to rare; otherwise rare ones would be sampled most.

    The order may be approximate, as from another text: the first tenth of the tokens must have at least half of the
    occurrences that the most frequent tenth has. Raises UserError otherwise.

    counts: int [V], occurrences in the training text. special: ids without an order.
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
    """Scores whose cross-entropy is over the target and the samples. The logits remain those of the vocabulary.

    scores: the scores of the whole vocabulary.
    draws: samples of the same vocabulary.
    """

    scores: VocabularyScores
    draws: Draws

    def logits(self) -> jax.Array:
        return self.scores.logits()

    def last_logits(self) -> jax.Array:
        return self.scores.last_logits()

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return nats of targets, int [B T], in the softmax over target and samples, float32 [B T].

        Also return true if no sample scores higher. A sample that equals the target does not count
        (remove_accidental_hits of tf.nn.sampled_softmax_loss).
        """
        target_score = self.scores.target_logits(targets) - self.draws.log_expected(targets)
        draw_scores = self.scores.token_logits(self.draws.ids) - self.draws.log_expected(self.draws.ids)
        draw_scores = jnp.where(targets[..., None] == self.draws.ids, -jnp.inf, draw_scores)
        nats = jnp.logaddexp(target_score, jax.nn.logsumexp(draw_scores, axis=-1)) - target_score
        return nats, target_score >= jnp.max(draw_scores, axis=-1)
