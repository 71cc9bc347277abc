"""The base of word2vec's objectives: the words that predict each other, and the size of a batch's update.

Frequent words are left out at random before windows are made, so windows reach across them. The window of a word is
1 to `window` words to either side, drawn for each word. A window ends with its row and with its document (word2vec.c).

    B rows of text, N blocks of a row, S predicted words of a block, T words of the block and around it,
    H predictors of a block (`plmjax.models.word2vec.Architecture`): T of skip-gram, S of CBOW

The authors' rule processes one prediction after the other: its gradient, times the learning rate, is added to its rows
before the next prediction. Here a batch is one step. The gradient of a row is the sum over all predictions of the
batch, not their mean: the learning rate is that of one prediction. If a row is used more than `row_updates` times, the
sum is scaled down to this number times its mean: all terms use the same old row, and the full sum would move it too
far. A batch of one prediction is the authors' rule.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges
from plmjax.models.word2vec import Architecture, SkipGram
from plmjax.objectives.capabilities import ReadsRows
from plmjax.objectives.objective import Batch, ConstantSources, Objective

STRETCH = 16
"""Number of words of a row that are scored together.

Their scores are one product of matrices, of which the windows use a band. With more words, more of the product is
wasted; with fewer words, it is too small to be fast.
"""


@dataclasses.dataclass(frozen=True)
class WordPrediction(ReadsRows, Objective):
    """Base class of the objectives on rows of consecutive words, such as `Chunks` gives."""

    architecture: Architecture = SkipGram()
    """Predictor of a word: each of its neighbours separately, or all of them together."""
    window: int = 5
    """Maximum number of words to either side."""
    threshold: float = 1e-3
    """Share of the text above which a word is sometimes left out; 0 keeps all words."""
    min_count: int = 5
    """Minimum number of occurrences in the training text of a learned word; rarer words are ignored."""
    row_updates: float = 64.0
    """Maximum update of a table row by a batch, as a number of single updates.

    Its product with the learning rate should stay near 1. If it is much larger, words that fill a batch oscillate.
    """

    def __post_init__(self) -> None:
        check_ranges("objective", self, window=FROM_1, row_updates=FROM_1, min_count=FROM_1, threshold=FROM_0)

    def counts(self, sources: ConstantSources) -> np.ndarray:
        """Return the occurrences of the learned words, float64 [V]; 0 for the others and for special tokens.

        Raises:
            UserError: no word of the text is frequent enough.
        """
        counts = sources.token_counts.astype(np.float64)
        counts[list(sources.vocabulary.special)] = 0
        if counts.any() and counts.max() < self.min_count:
            raise UserError(
                f"Expected words with at least {self.min_count} occurrences in the training text, found none; give "
                "more text or lower --objective.min_count."
            )
        return np.where(counts < self.min_count, 0, counts)

    def keep_probability(self, counts: np.ndarray) -> np.ndarray:
        """Return the probability that each word is kept, float32 [V] (word2vec.c v0.1c)."""
        frequency = np.maximum(counts, 1) / max(counts.sum(), 1)
        ratio = self.threshold / frequency
        chance = np.minimum(np.sqrt(ratio) + ratio, 1) if self.threshold else np.ones_like(frequency)
        return np.float32(np.where(counts > 0, chance, 0))

    @property
    def block_size(self) -> int:
        """Return the number of words of a block, S; no window reaches beyond the next block."""
        return max(STRETCH, self.window)

    def windows(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any) -> Batch:
        """Drop frequent words at random, cut the others into blocks, and return them with the pairs in one window.

        input_ids int32 [B N S], 0 after the last word of a row; pairs float32 [B N T S], 1 if the word t of those
        around a block (`with_context`) lies in the window of the block's word s.
        """
        ids, (keeping, reaching) = batch["input_ids"], jax.random.split(key)
        kept = (batch["segment_ids"] > 0) & (jax.random.uniform(keeping, ids.shape) < constants["kept"][ids])
        rows, words = ids.shape
        stretches = -(-words // self.block_size)
        place = jnp.where(kept, jnp.cumsum(kept, axis=1) - 1, stretches * self.block_size)

        def grouped(x: jax.Array) -> jax.Array:
            moved = jnp.zeros((rows, stretches * self.block_size), jnp.int32)
            moved = moved.at[jnp.arange(rows)[:, None], place].set(x, mode="drop")
            return moved.reshape(rows, stretches, self.block_size)

        document = grouped(1 + jnp.cumsum(ids == vocabulary.document_end, axis=1))  # 0 without a word
        reach = 1 + jax.random.bits(reaching, document.shape) % self.window  # randint draws twice as many bits
        distance = np.abs(np.arange(-self.window, self.block_size + self.window)[:, None] - np.arange(self.block_size))
        near = (distance > 0) & (distance <= reach[:, :, None, :]) & (document > 0)[:, :, None, :]
        near &= self.with_context(document)[..., None] == document[:, :, None, :]
        return batch | {"input_ids": grouped(ids), "pairs": near.astype(jnp.float32)}

    def with_context(self, x: jax.Array) -> jax.Array:
        """Return the words of every block and their neighbours within a window: [B N S ...] -> [B N T ...]."""
        edge = jnp.zeros_like(x[:, :1])
        before = jnp.concatenate([edge, x[:, :-1]], axis=1)[:, :, self.block_size - self.window :]
        after = jnp.concatenate([x[:, 1:], edge], axis=1)[:, :, : self.window]
        return jnp.concatenate([before, x, after], axis=2)

    def rows(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the rows of both tables; a prediction reads no others."""
        ids = self.model_inputs(batch)
        return {"input_vectors/embedding": ids["input_ids"], "output_vectors/embedding": ids["output_ids"]}

    def updates(self, ids: jax.Array, asked: jax.Array, constants: Any) -> jax.Array:
        """Return the number of uses of each table row, float32 [V].

        asked: float32, the number of uses of each of `ids`, int.
        """
        return jnp.zeros(constants["kept"].shape, jnp.float32).at[ids].add(asked)

    def factors(self, ids: jax.Array, updates: jax.Array, total: jax.Array) -> jax.Array:
        """Return the factors of the gradients of the rows `ids`, int [...] -> float32 [...].

        Args:
            updates: the number of uses of all rows.
            total: the number of predictions of the batch; the loss is their mean.
        """
        return total * jnp.minimum(self.row_updates / jnp.maximum(updates, 1), 1)[ids]

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the predicted words, each as often as it is predicted."""
        return batch["input_ids"], self.architecture.prediction_counts(self.architecture.predictions(batch["pairs"]))

    def predictions_of_a_word(self) -> int:
        """Return the predictions per word, with windows of the mean width and no word left out."""
        return self.window + 1 if isinstance(self.architecture, SkipGram) else 1


@jax.custom_vjp
def scaled_gradient(x: jax.Array, factors: jax.Array) -> jax.Array:
    """Return x [... D] unchanged, with its gradient multiplied by `factors` [...]."""
    return x


scaled_gradient.defvjp(
    lambda x, factors: (x, factors),
    lambda factors, gradient: (gradient * factors[..., None], jnp.zeros_like(factors)),
)


def total(weights: jax.Array, nats: jax.Array) -> jax.Array:
    """Return the weighted sum of [B ...], axis by axis. A single float32 sum over all numbers would lose precision.

    Barriers are needed, because XLA merges sums of sums.
    """
    sums = weights * nats
    while sums.ndim:
        sums = jax.lax.optimization_barrier(jnp.sum(sums, axis=-1))
    return sums
