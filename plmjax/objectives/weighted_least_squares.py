"""GloVe's task: the logarithms of cooccurrences (Pennington et al., EMNLP 2014, section 3; stanfordnlp/GloVe glove.c).

    loss = 1/2 f(X) (model - log X)^2        f(X) = min(1, (X / x_max)^power)

Rare cooccurrences say little and weigh little; frequent ones weigh alike. The loss is the mean over cells, as the
released program prints it; the paper has the sum, without the half.

The authors' rule takes one cell after the other. Here a batch is one step. The gradient of a row of a table is the sum
over the cells of the batch, not their mean, so that the learning rate is that of one cell. All of them are of the same
old row, and Adagrad's accumulator grows by the square of their sum, not by the sum of their squares. Cells are shuffled
and each is there once an epoch, so that a word has few of them in a batch: of B among N cells of V words it has B / V
on average, and even the most frequent word at most about B V / N. A batch of one cell is the authors' rule.

The step has the gradients of whole tables: a batch of about as many cells as there are words asks for most of the rows,
and to look up and update these alone takes longer (`ReadsRows`).
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import FROM_0, UserError, check_ranges
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective, apply
from plmjax.objectives.word_prediction import scaled_gradient, total
from plmjax.vocabulary import Vocabulary

TERM = "least_squares"


@dataclasses.dataclass(frozen=True)
class WeightedLeastSquares(Objective):
    """Mean loss of a cell, of rows such as `Cooccurrences` gives."""

    perplexity: ClassVar[bool] = False

    x_max: float = 100.0
    """Cooccurrences from which on all weigh the same."""
    power: float = 0.75
    """Of the share of x_max that rarer ones have."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("objective", self, power=FROM_0)
        if not self.x_max > 0:
            raise UserError(f"Expected --objective.x_max above 0, found {self.x_max}; change it.")

    def constants(self, config: Any, sources: ConstantSources) -> dict[str, Any]:
        """log_shares, float32 [V]: of two words that stand beside each other by chance, their sum is log X.

        That is log(m_i m_j / M) for the weight m of each word in all cells, of M in total.
        """
        weight = np.maximum(sources.token_counts.astype(np.float64), 1)
        return {"log_shares": nn.LogicallyPartitioned(np.float32(np.log(weight) - np.log(weight.sum()) / 2), (None,))}

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Adds gradient_factors float32 [B T], the cells of the batch: by their mean the loss is divided."""
        count = self.weights(batch)[TERM]
        return batch | {"gradient_factors": jnp.full(batch["cooccurrences"].shape, count)}

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Rows and columns."""
        return {"input_ids": batch["input_ids"], "context_ids": batch["context_ids"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Number of cells."""
        return {TERM: jnp.maximum(jnp.sum(self._exists(batch)), 1e-9)}

    def sums(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool) -> LossSums:
        """The loss of the cells; in evaluation also that from the counts of the words alone."""
        logs = apply(self, module, given, batch, key, training=training)
        logs = scaled_gradient(logs[..., None], batch["gradient_factors"])[..., 0]
        loss = self._loss(logs, batch)
        if training:
            return LossSums({TERM: loss}, {})
        shares = given.constants["log_shares"]
        chance = self._loss(shares[batch["input_ids"]] + shares[batch["context_ids"]], batch)
        return LossSums({TERM: loss}, {"unigram_loss": (chance, self.weights(batch)[TERM])})

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The words of the columns."""
        return batch["context_ids"], self._exists(batch)

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Of the product of every cell."""
        return 6.0 * batch["input_ids"].size * config.vector_size

    def _exists(self, batch: Batch) -> jax.Array:
        """float32 [B T], 0 where a row only fills the batch."""
        return (batch["cooccurrences"] > 0).astype(jnp.float32)

    def _loss(self, logs: jax.Array, batch: Batch) -> jax.Array:
        """The sum over all cells."""
        exists = self._exists(batch)
        found = jnp.where(exists > 0, batch["cooccurrences"], 1)
        weight = exists * jnp.minimum(1, (found / self.x_max) ** self.power)
        return total(weight / 2, jnp.square(logs - jnp.log(found)))
