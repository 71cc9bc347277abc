"""What the objectives of word2vec share: which words of a text predict which, and how far a batch moves a vector.

Frequent words are left out at random before windows are laid, so that windows reach over them; the window of a word is
1 to `window` words to either side, drawn for each. A window ends with its row and with its document (word2vec.c).

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
from plmjax.objectives.objective import Batch, Materials, Objective
from plmjax.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class WordPrediction(Objective):
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

    def counts(self, materials: Materials) -> np.ndarray:
        """Occurrences of the words that are learned, float64 [V]; 0 for the others and for special tokens.

        Raises:
            UserError: no word of the text is frequent enough.
        """
        counts = materials.token_counts.astype(np.float64)
        counts[list(materials.vocabulary.special)] = 0
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

    def pairs(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any) -> jax.Array:
        """float32 [B T S]: 1 where the word t lies in the window of the word s, and neither is left out."""
        ids, (keeping, reaching) = batch["input_ids"], jax.random.split(key)
        kept = (batch["segment_ids"] > 0) & (jax.random.uniform(keeping, ids.shape) < constants["kept"][ids])
        place = jnp.cumsum(kept, axis=1)
        document = jnp.cumsum(ids == vocabulary.document_end, axis=1)
        reach = jax.random.randint(reaching, ids.shape, 1, self.window + 1)
        distance = jnp.abs(place[:, :, None] - place[:, None, :])
        near = (distance > 0) & (distance <= reach[:, None, :]) & (document[:, :, None] == document[:, None, :])
        return (near & kept[:, :, None] & kept[:, None, :]).astype(jnp.float32)

    def rows(self, batch: Batch) -> dict[str, jax.Array]:
        """Those of both tables: all that a prediction reads."""
        ids = self.model_inputs(batch)
        return {"input_vectors/embedding": ids["input_ids"], "output_vectors/embedding": ids["output_ids"]}

    def factors(self, ids: jax.Array, updates: jax.Array, total: jax.Array, constants: Any) -> jax.Array:
        """By what the gradients of rows are multiplied, float32, shaped as `ids`, int, and `updates`, float32.

        updates: how often each of the ids is asked for. total: the predictions of the batch, whose mean the loss is.
        """
        of_row = jnp.zeros(constants["kept"].shape, jnp.float32).at[ids].add(updates)
        return total * jnp.minimum(self.row_updates / jnp.maximum(of_row, 1), 1)[ids]

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
    """The weighted sum of [B ...], of each row first: one float32 that adds up all numbers rounds off the last ones."""
    rows = len(nats)
    return jnp.sum(jnp.einsum("BN,BN->B", weights.reshape(rows, -1), nats.reshape(rows, -1)))
