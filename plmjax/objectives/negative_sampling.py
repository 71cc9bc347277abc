"""Negative sampling (Mikolov et al., NeurIPS 2013, arXiv 1310.4546, section 2.2; tmikolov/word2vec word2vec.c).

The model predicts a word s against negative words n. These are drawn by the text's counts to the power of 3/4:

    loss = -log sigmoid(score(h, s)) - sum over k draws of log sigmoid(-score(h, n))

h is the hidden vector of the predicting words. plmjax/objectives/word_prediction.py describes these words, and how a
batch of predictions is one step. The predictions of a block of words share `shared` draws, each with the weight
`negatives` / `shared`. The expected loss is the same as with separate draws, and the scores are products of matrices.

Deviation: a repeated draw among the negatives of one prediction reads the same row; in word2vec.c it reads the row as
changed by the earlier draw.
Deviation: word2vec.c takes sigmoids beyond +-6 for 0 or 1 and reads the others from a table.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, FROM_1, check_ranges
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, apply
from plmjax.objectives.word_prediction import WordPrediction, scaled_gradient, total

DRAWS = np.iinfo(np.uint32).max


@dataclasses.dataclass(frozen=True)
class NegativeSampling(WordPrediction):
    """Mean nats of a prediction and its negatives, for rows of consecutive words such as `Chunks` gives."""

    perplexity: ClassVar[bool] = False  # each decision is between two classes

    negatives: int = 5
    """Number of words to draw for each prediction."""
    shared: int = 16
    """Number of draws that the predictions of a stretch of 16 words share (longer if --objective.window is larger)."""
    power: float = 0.75
    """Exponent of the counts, for the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("objective", self, negatives=FROM_1, shared=FROM_1, power=FROM_0)

    def constants(self, config: Any, sources: ConstantSources) -> dict[str, Any]:
        """Return tables of the V words.

        kept: float32, the probability that a word is kept. noise: uint32, the cumulative probabilities of the draws.
        unigram_scores: float32, the score of each word with the lowest loss if its neighbours are not known.

        Raises:
            UserError: no word of the text is frequent enough.
        """
        counts = self.counts(sources)
        kept, noise = self.keep_probability(counts), np.where(counts > 0, counts**self.power, 0)
        noise, seen = noise / max(noise.sum(), 1), counts * kept / max((counts * kept).sum(), 1)
        known = counts > 0
        scores = np.log(np.where(known, seen, 1)) - np.log(np.where(known, self.negatives * noise, 1))
        tables = {"kept": kept, "noise": np.uint32(np.minimum(np.cumsum(noise), 1) * DRAWS)}
        tables["unigram_scores"] = np.float32(scores)
        return {name: nn.LogicallyPartitioned(table, (None,)) for name, table in tables.items()}

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the targets, the drawn words, and the factors of the rows' gradients.

        input_ids and pairs as from `windows`; noise_ids int32 [B N K]; noise_weights float32 [B N H K], the weight of
        each draw; input_factors [B N S], output_factors [B N S+K].
        """
        windows, draws = jax.random.split(key)
        batch = self.windows(batch, windows, vocabulary, constants)
        ids, pairs = batch["input_ids"], batch["pairs"]
        bits = jax.random.bits(draws, (*ids.shape[:2], self.shared), jnp.uint32)
        drawn = jnp.searchsorted(constants["noise"], bits, side="right").astype(jnp.int32)
        noise_ids = jnp.minimum(drawn, len(constants["noise"]) - 1)
        predictions = self.architecture.predictions(pairs)
        # A draw of the word itself is skipped (word2vec.c).
        differs = (ids[..., None] != noise_ids[:, :, None, :]).astype(jnp.float32)
        noise_weights = self.architecture.negative_counts(predictions, differs) * (self.negatives / self.shared)

        output_ids = jnp.concatenate([ids, noise_ids], axis=2)
        asked = jnp.concatenate(
            [self.architecture.prediction_counts(predictions), jnp.sum(noise_weights, axis=2)], axis=2
        )
        inputs = self.updates(self.with_context(ids), jnp.sum(pairs, axis=3), constants)
        outputs, count = self.updates(output_ids, asked, constants), jnp.sum(predictions)
        return batch | {
            "noise_ids": noise_ids,
            "noise_weights": noise_weights,
            "input_factors": self.factors(ids, inputs, count),
            "output_factors": self.factors(output_ids, outputs, count),
        }

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {
            "input_ids": batch["input_ids"],
            "output_ids": jnp.concatenate([batch["input_ids"], batch["noise_ids"]], axis=2),
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"negative_sampling": jnp.maximum(jnp.sum(self.architecture.predictions(batch["pairs"])), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return nats of predictions and negatives; in evaluation also the nats that word counts alone give."""
        pairs, noise_weights = batch["pairs"], batch["noise_weights"]
        inputs, outputs = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        inputs = self.with_context(scaled_gradient(inputs, batch["input_factors"]))
        outputs = scaled_gradient(outputs, batch["output_factors"])
        words, noise = jnp.split(outputs, [pairs.shape[3]], axis=2)
        hidden, predictions = self.architecture.hidden(inputs, pairs), self.architecture.predictions(pairs)
        true_scores = self.architecture.scores(hidden, words)
        noise_scores = jnp.einsum("BNHD,BNKD->BNHK", hidden, noise)
        loss = total(predictions, nn.softplus(-true_scores)) + total(noise_weights, nn.softplus(noise_scores))
        if training:
            return LossSums({"negative_sampling": loss}, {})
        scores, asked = loss_inputs.constants["unigram_scores"], self.architecture.prediction_counts(predictions)
        unigram = total(asked, nn.softplus(-scores[batch["input_ids"]]))
        unigram += total(jnp.sum(noise_weights, axis=2), nn.softplus(scores[batch["noise_ids"]]))
        return LossSums({"negative_sampling": loss}, {"unigram_loss": (unigram, jnp.sum(predictions))})

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        scores = self.predictions_of_a_word() * (1 + self.negatives)
        return 6.0 * batch["input_ids"].size * scores * config.vector_size
