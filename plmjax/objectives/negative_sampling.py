"""Negative sampling (Mikolov et al., NeurIPS 2013, arXiv 1310.4546, section 2.2; tmikolov/word2vec word2vec.c).

A word s is told from words n that are drawn from the text's counts to the power of 3/4:

    loss = -log sigmoid(score(h, s)) - sum over k draws of log sigmoid(-score(h, n))

Frequent words are left out at random before windows are laid, so that windows reach over them; the window of a word is
1 to `window` words to either side, drawn for each. A window ends with its row and with its document.

The authors' rule takes one prediction after the other: each draws words of its own, and its gradient, times the
learning rate, is added to the rows it is of before the next one is looked at. Here a batch is one step:

- The gradient of a row is the sum over all predictions of the batch, not their mean: the learning rate is that of one
  prediction. Where a row is asked for more than `row_updates` times, the sum is scaled down to so many times its mean:
  all terms of the sum are of the same old row, and would carry it too far.
- The predictions of a row of text share `shared` draws, each of which counts `negatives` / `shared` times: the
  expected loss is the same, and the scores are products of matrices.

With one prediction in a batch, and as many draws as negatives, this is the authors' rule (test_negative_sampling.py).

Deviation: a draw that repeats within the negatives of one prediction sees in word2vec.c the row that it has changed.
Deviation: word2vec.c takes sigmoids beyond +-6 for 0 or 1 and reads the others from a table.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges
from plmjax.models.word2vec import Architecture, SkipGram
from plmjax.objectives.objective import Batch, Given, Materials, Objective, Sums, apply
from plmjax.vocabulary import Vocabulary

DRAWS = np.iinfo(np.uint32).max


@dataclasses.dataclass(frozen=True)
class NegativeSampling(Objective):
    """Mean nats of a prediction and its negatives, of rows of consecutive words such as `Blocks` gives."""

    architecture: Architecture = SkipGram()
    """What predicts a word: each of its neighbours alone, or all of them together."""
    window: int = 5
    """Words to either side, at most."""
    negatives: int = 5
    """Draws that a word is told from."""
    shared: int = 64
    """Draws that the predictions of a row share."""
    power: float = 0.75
    """Of the counts, for the draws."""
    threshold: float = 1e-3
    """Share of the text above which a word is left out now and then; 0 leaves none out."""
    least: int = 5
    """Occurrences in the training text of the rarest words that are learned; rarer ones are as if not there."""
    row_updates: float = 16.0
    """Updates by a batch, counted at the rate of one, that a row of a table gets at most."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("objective", self, window=FROM_1, negatives=FROM_1, shared=FROM_1, row_updates=FROM_1)
        check_ranges("objective", self, least=FROM_1, power=FROM_0, threshold=FROM_0)

    def constants(self, config: Any, materials: Materials) -> dict[str, Any]:
        """Tables of the V words, special tokens among none of them.

        kept: float32, the chance that a word is not left out. noise: uint32, the cumulative shares of the draws.
        unigram_scores: float32, the score of each word that loses least if its neighbours are not known.

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
        counts[counts < self.least] = 0
        share = counts / max(counts.sum(), 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.threshold / share
            kept = np.where(counts > 0, np.minimum(np.sqrt(ratio) + ratio, 1) if self.threshold else 1.0, 0)
            noise = np.where(counts > 0, counts**self.power, 0)
            noise /= max(noise.sum(), 1e-300)
            seen = counts * kept / max((counts * kept).sum(), 1)
            scores = np.where(counts > 0, np.log(seen) - np.log(self.negatives * noise), 0)
        tables = {
            "kept": np.float32(kept),
            "noise": np.uint32(np.minimum(np.cumsum(noise), 1) * DRAWS),
            "unigram_scores": np.float32(scores),
        }
        return {name: nn.LogicallyPartitioned(table, (None,)) for name, table in tables.items()}

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Adds what is predicted, what it is told from, and by how much the gradients of rows are multiplied.

        pairs float32 [B T S], 1 where t lies in the window of s; noise_ids int32 [B K]; noise_weights float32 [B H K],
        how often each draw counts; input_factors [B T], output_factors [B T + K].
        """
        ids = batch["input_ids"]
        windows, draws = jax.random.split(key)
        pairs = self.pairs(batch, windows, vocabulary, constants)
        bits = jax.random.bits(draws, (len(ids), self.shared), jnp.uint32)
        drawn = jnp.searchsorted(constants["noise"], bits, side="right").astype(jnp.int32)
        noise_ids = jnp.minimum(drawn, len(constants["noise"]) - 1)
        predictions = self.architecture.predictions(pairs)
        # A draw of the word itself is passed over (word2vec.c).
        differs = (ids[:, :, None] != noise_ids[:, None, :]).astype(jnp.float32)
        noise_weights = self.architecture.contrasts(predictions, differs) * (self.negatives / self.shared)

        output_ids = jnp.concatenate([ids, noise_ids], axis=1)
        output_updates = [self.architecture.asked(predictions), jnp.sum(noise_weights, axis=1)]
        total = jnp.sum(predictions)
        return batch | {
            "pairs": pairs,
            "noise_ids": noise_ids,
            "noise_weights": noise_weights,
            "input_factors": total * self._shares(ids, jnp.sum(pairs, axis=2), constants),
            "output_factors": total * self._shares(output_ids, jnp.concatenate(output_updates, axis=1), constants),
        }

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

    def _shares(self, ids: jax.Array, updates: jax.Array, constants: Any) -> jax.Array:
        """The share of the updates of each id's row that is made: 1 where the batch has no more than `row_updates`."""
        of_row = jnp.zeros(constants["kept"].shape, jnp.float32).at[ids].add(updates)
        return jnp.minimum(self.row_updates / jnp.maximum(of_row, 1), 1)[ids]

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """The words, as inputs; they and the draws, as outputs."""
        return {
            "input_ids": batch["input_ids"],
            "output_ids": jnp.concatenate([batch["input_ids"], batch["noise_ids"]], axis=1),
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Number of predictions."""
        return {"negative_sampling": jnp.maximum(jnp.sum(self.architecture.predictions(batch["pairs"])), 1e-9)}

    def sums(self, module: nn.Module, given: Given, batch: Batch, key: jax.Array, *, training: bool) -> Sums:
        """Nats of the predictions and their negatives; in evaluation also those of one who knows the counts alone."""
        pairs, noise_weights = batch["pairs"], batch["noise_weights"]
        inputs, outputs = apply(self, module, given, batch, key, training=training)
        inputs = _scaled_gradient(inputs, batch["input_factors"])
        outputs = _scaled_gradient(outputs, batch["output_factors"])
        words, noise = jnp.split(outputs, [pairs.shape[2]], axis=1)
        hidden, predictions = self.architecture.hidden(inputs, pairs), self.architecture.predictions(pairs)
        true_scores = self.architecture.scores(hidden, words)
        noise_scores = jnp.einsum("BHD,BKD->BHK", hidden, noise)
        loss = _total(predictions, nn.softplus(-true_scores)) + _total(noise_weights, nn.softplus(noise_scores))
        if training:
            return Sums({"negative_sampling": loss}, {})
        scores, asked = given.constants["unigram_scores"], self.architecture.asked(predictions)
        unigram = jnp.sum(asked * nn.softplus(-scores[batch["input_ids"]]))
        unigram += jnp.sum(jnp.sum(noise_weights, axis=1) * nn.softplus(scores[batch["noise_ids"]]))
        return Sums({"negative_sampling": loss}, {"unigram_loss": (unigram, jnp.sum(predictions))})

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The predicted words, each as often as it is predicted."""
        return batch["input_ids"], self.architecture.asked(self.architecture.predictions(batch["pairs"]))

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Of every prediction and its negatives, with windows of the mean width, no word left out."""
        neighbours = self.window + 1  # twice the mean of 1..window
        products = (1 + self.negatives) * (neighbours if isinstance(self.architecture, SkipGram) else 1)
        return 6.0 * batch["input_ids"].size * products * config.vector_size


def _total(weights: jax.Array, nats: jax.Array) -> jax.Array:
    """The weighted sum of [B ...], of each row first: one float32 that adds up all numbers rounds off the last ones."""
    rows = len(nats)
    return jnp.sum(jnp.einsum("BN,BN->B", weights.reshape(rows, -1), nats.reshape(rows, -1)))


def _scaled_gradient(x: jax.Array, factors: jax.Array) -> jax.Array:
    """x [B T D] as it is, its gradient multiplied by `factors` [B T]."""
    fixed = jax.lax.stop_gradient(x)
    return fixed + factors[..., None] * (x - fixed)
