"""What the objectives of word2vec share: which words of a text predict which, and how far a batch moves a vector.

Frequent words are left out at random before windows are laid, so that windows reach over them; the window of a word is
1 to `window` words to either side, drawn for each. A window ends with its row and with its document (word2vec.c).

    B rows of text, N stretches of a row, S words of a stretch that are predicted, T words of it and around it

The authors' rule takes one prediction after the other: its gradient, times the learning rate, is added to the rows it
is of before the next one is looked at. Here a batch is one step. The gradient of a row is the sum over all predictions
of the batch, not their mean: the learning rate is that of one prediction. Where a row is asked for more than
`row_updates` times, the sum is scaled down to so many times its mean: all its terms are of the same old row, and would
carry it too far. A batch of one prediction is the authors' rule.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges
from plmjax.models.word2vec import Architecture, SkipGram
from plmjax.objectives.capabilities import ReadsRows
from plmjax.objectives.objective import Batch, ConstantSources, Objective
from plmjax.vocabulary import Vocabulary

STRETCH = 16
"""Words of a row that are scored together. Their scores are one product of matrices, of which the windows use a band:
more words waste more of it, fewer make it too small to be fast."""


@dataclasses.dataclass(frozen=True)
class WordPrediction(ReadsRows, Objective):
    """Base of the objectives on rows of consecutive words, such as `Blocks` gives."""

    architecture: Architecture = SkipGram()
    """What predicts a word: each of its neighbours alone, or all of them together."""
    window: int = 5
    """Words to either side, at most."""
    threshold: float = 1e-3
    """Share of the text above which a word is left out now and then; 0 leaves none out."""
    least: int = 5
    """Occurrences in the training text of the rarest words that are learned; rarer ones are as if not there."""
    row_updates: float = 64.0
    """Updates by a batch, counted at the rate of one, that a row of a table gets at most. Times the learning rate it
    should stay near 1: where it is much larger, words that fill a batch are carried back and forth."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("objective", self, window=FROM_1, row_updates=FROM_1, least=FROM_1, threshold=FROM_0)

    def counts(self, sources: ConstantSources) -> np.ndarray:
        """Occurrences of the words that are learned, float64 [V]; 0 for the others and for special tokens.

        Raises:
            UserError: no word of the text is frequent enough.
        """
        counts = sources.token_counts.astype(np.float64)
        counts[list(sources.vocabulary.special)] = 0
        if counts.any() and counts.max() < self.least:
            raise UserError(
                f"Expected words that stand {self.least} times in the training text, found none; give more text or "
                "lower --objective.least."
            )
        return np.where(counts < self.least, 0, counts)

    def kept(self, counts: np.ndarray) -> np.ndarray:
        """The chance of every word that it is not left out, float32 [V] (word2vec.c v0.1c)."""
        share = np.maximum(counts, 1) / max(counts.sum(), 1)
        ratio = self.threshold / share
        chance = np.minimum(np.sqrt(ratio) + ratio, 1) if self.threshold else np.ones_like(share)
        return np.float32(np.where(counts > 0, chance, 0))

    @property
    def stretch(self) -> int:
        """Words of a stretch, S; no window reaches beyond the next one."""
        return max(STRETCH, self.window)

    def windows(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any) -> Batch:
        """The words that are kept, moved together and cut into stretches, and what lies in whose window.

        input_ids int32 [B N S], 0 behind the last word of a row; pairs float32 [B N T S], 1 where the word t of those
        around a stretch (`around`) lies in the window of its word s.
        """
        ids, (keeping, reaching) = batch["input_ids"], jax.random.split(key)
        kept = (batch["segment_ids"] > 0) & (jax.random.uniform(keeping, ids.shape) < constants["kept"][ids])
        rows, words = ids.shape
        stretches = -(-words // self.stretch)
        place = jnp.where(kept, jnp.cumsum(kept, axis=1) - 1, stretches * self.stretch)

        def together(x: jax.Array) -> jax.Array:
            moved = jnp.zeros((rows, stretches * self.stretch), jnp.int32)
            moved = moved.at[jnp.arange(rows)[:, None], place].set(x, mode="drop")
            return moved.reshape(rows, stretches, self.stretch)

        document = together(1 + jnp.cumsum(ids == vocabulary.document_end, axis=1))  # 0 where there is no word
        reach = 1 + jax.random.bits(reaching, document.shape) % self.window  # randint draws twice as many bits
        distance = np.abs(np.arange(-self.window, self.stretch + self.window)[:, None] - np.arange(self.stretch))
        near = (distance > 0) & (distance <= reach[:, :, None, :]) & (document > 0)[:, :, None, :]
        near &= self.around(document)[..., None] == document[:, :, None, :]
        return batch | {"input_ids": together(ids), "pairs": near.astype(jnp.float32)}

    def around(self, x: jax.Array) -> jax.Array:
        """Of every stretch its words and those that a window reaches to either side: [B N S ...] -> [B N T ...]."""
        edge = jnp.zeros_like(x[:, :1])
        before = jnp.concatenate([edge, x[:, :-1]], axis=1)[:, :, self.stretch - self.window :]
        after = jnp.concatenate([x[:, 1:], edge], axis=1)[:, :, : self.window]
        return jnp.concatenate([before, x, after], axis=2)

    def rows(self, batch: Batch) -> dict[str, jax.Array]:
        """Those of both tables: all that a prediction reads."""
        ids = self.model_inputs(batch)
        return {"input_vectors/embedding": ids["input_ids"], "output_vectors/embedding": ids["output_ids"]}

    def updates(self, ids: jax.Array, asked: jax.Array, constants: Any) -> jax.Array:
        """How often each row of a table is asked for, float32 [V]. `asked`, float32, says it of each of `ids`, int."""
        return jnp.zeros(constants["kept"].shape, jnp.float32).at[ids].add(asked)

    def factors(self, ids: jax.Array, updates: jax.Array, total: jax.Array) -> jax.Array:
        """By what the gradients of the rows `ids`, int [...], are multiplied, float32 [...].

        updates: of all rows. total: the predictions of the batch, whose mean the loss is.
        """
        return total * jnp.minimum(self.row_updates / jnp.maximum(updates, 1), 1)[ids]

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The predicted words, each as often as it is predicted."""
        return batch["input_ids"], self.architecture.asked(self.architecture.predictions(batch["pairs"]))

    def predictions_of_a_word(self) -> int:
        """Predictions of a word with windows of the mean width, none left out."""
        return self.window + 1 if isinstance(self.architecture, SkipGram) else 1


@jax.custom_vjp
def scaled_gradient(x: jax.Array, factors: jax.Array) -> jax.Array:
    """x [... D] as it is, its gradient multiplied by `factors` [...]."""
    return x


scaled_gradient.defvjp(
    lambda x, factors: (x, factors),
    lambda factors, gradient: (gradient * factors[..., None], jnp.zeros_like(factors)),
)


def total(weights: jax.Array, nats: jax.Array) -> jax.Array:
    """The weighted sum of [B ...], axis by axis: one float32 that adds up all numbers rounds off the last ones.

    Barriers, because XLA joins sums of sums into one.
    """
    sums = weights * nats
    while sums.ndim:
        sums = jax.lax.optimization_barrier(jnp.sum(sums, axis=-1))
    return sums
