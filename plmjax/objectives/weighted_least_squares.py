"""GloVe's objective: logarithms of cooccurrences (Pennington et al., EMNLP 2014, section 3; stanfordnlp/GloVe glove.c).

    loss = 1/2 f(X) (model - log X)^2        f(X) = min(1, (X / x_max)^power)

X is the number of cooccurrences of two words. Rare cooccurrences are unreliable and have a small weight; frequent ones
all have the same weight. The loss is the mean over cells, as in the released program's output; the paper has the sum,
without the half.

The authors' rule processes one cell after the other. Here a batch is one step. The gradient of a table row is the sum
over the cells of the batch, not their mean. So the learning rate is that of one cell. All terms use the same old row,
and Adagrad's accumulator grows by the square of their sum, not by the sum of their squares. Cells are shuffled and each
occurs once an epoch, so a word has few cells in a batch: with B of N cells and V words, B / V on average, and even the
most frequent word at most about B V / N. A batch of one cell is the authors' rule.

The step computes the gradients of whole tables. A batch with about as many cells as words needs most of the rows, and
looking up and updating only these takes longer (`ReadsRows`).
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import ABOVE_0, FROM_0, check_ranges
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective, apply
from plmjax.objectives.word_prediction import scaled_gradient, total

TERM = "least_squares"


@dataclasses.dataclass(frozen=True)
class WeightedLeastSquares(Objective):
    """Mean loss of a cell, for rows such as `Cooccurrences` gives."""

    perplexity: ClassVar[bool] = False

    x_max: float = 100.0
    """Number of cooccurrences at which the weight reaches its maximum."""
    power: float = 0.75
    """Exponent of the fraction X / x_max, for rarer cooccurrences."""

    def __post_init__(self) -> None:
        check_ranges("objective", self, power=FROM_0, x_max=ABOVE_0)

    def constants(self, config: Any, sources: ConstantSources) -> dict[str, Any]:
        """Return log_shares, float32 [V], whose sum for two words is the log X that is expected by chance.

        This sum is log(m_i m_j / M), with m the weight of a word in all cells, and M the total weight.
        """
        weight = np.maximum(sources.token_counts.astype(np.float64), 1)
        return {"log_shares": nn.LogicallyPartitioned(np.float32(np.log(weight) - np.log(weight.sum()) / 2), (None,))}

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add gradient_factors, float32 [B T]: the number of cells of the batch, by which the mean loss is divided."""
        count = self.weights(batch)[TERM]
        return batch | {"gradient_factors": jnp.full(batch["cooccurrences"].shape, count)}

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {"input_ids": batch["input_ids"], "context_ids": batch["context_ids"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {TERM: jnp.maximum(jnp.sum(self._exists(batch)), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the loss of the cells; in evaluation also the loss from word counts only."""
        logs = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        logs = scaled_gradient(logs[..., None], batch["gradient_factors"])[..., 0]
        loss = self._loss(logs, batch)
        if training:
            return LossSums({TERM: loss}, {})
        shares = loss_inputs.constants["log_shares"]
        chance = self._loss(shares[batch["input_ids"]] + shares[batch["context_ids"]], batch)
        return LossSums({TERM: loss}, {"unigram_loss": (chance, self.weights(batch)[TERM])})

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["context_ids"], self._exists(batch)

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        return 6.0 * batch["input_ids"].size * config.vector_size

    def _exists(self, batch: Batch) -> jax.Array:
        """Return float32 [B T]: 1 for cells, 0 for padding."""
        return (batch["cooccurrences"] > 0).astype(jnp.float32)

    def _loss(self, logs: jax.Array, batch: Batch) -> jax.Array:
        """Return the sum of the losses of all cells."""
        exists = self._exists(batch)
        found = jnp.where(exists > 0, batch["cooccurrences"], 1)
        weight = exists * jnp.minimum(1, (found / self.x_max) ** self.power)
        return total(weight / 2, jnp.square(logs - jnp.log(found)))
