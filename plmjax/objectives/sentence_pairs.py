"""The masked language model and a label for every pair of sentences, for BERT's and ALBERT's objectives."""

import dataclasses
from typing import Any, ClassVar

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.models.families.encoder import EncoderOutput
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Batch, LossInputs, LossSums, apply, cross_entropy


@dataclasses.dataclass(frozen=True)
class PairLabels:
    """A binary classification of a pair, with labels 0 and 1.

    term: name in the loss and the metrics. field: the batch has labels in {field}_labels, int32 [B K], and their
    weights in {field}_weights, float32 [B K]. logits: name of the encoder's output [B K 2].
    """

    term: str
    field: str
    logits: str

    def weight(self, batch: Batch) -> jax.Array:
        """Return the number of sequences in a batch, float32; never 0, so that a batch of padding has no loss."""
        return jnp.maximum(jnp.sum(batch[f"{self.field}_weights"]), 1e-9)

    def sums(self, outputs: EncoderOutput, batch: Batch) -> LossSums:
        """Return the loss and the accuracy of the labels. Raises UserError if the model has no head for them."""
        labels, weights = batch[f"{self.field}_labels"], batch[f"{self.field}_weights"]
        logits = getattr(outputs, self.logits)
        if logits is None:
            raise UserError(
                f"Expected a model with a head for pairs of sentences ({self.term}), found one without; name an "
                f"experiment whose objective is of the model's system."
            )
        chex.assert_equal_shape([labels, weights])
        loss = jnp.sum(weights * cross_entropy(logits, labels))
        hits = jnp.sum(weights * (jnp.argmax(logits, axis=-1) == labels))
        count = jnp.sum(weights)
        return LossSums({self.term: loss}, {f"{self.term}_loss": (loss, count), f"{self.term}_accuracy": (hits, count)})


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModelWithPairs(MaskedLanguageModel):
    """Mean nats of the masked tokens + mean nats of the labels of `pairs`, which a subclass defines."""

    pairs: ClassVar[PairLabels]

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.PRETRAINING, execution)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return super().model_inputs(batch) | {"cls_positions": batch["cls_positions"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return super().weights(batch) | {self.pairs.term: self.pairs.weight(batch)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        outputs = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        tokens, pairs = self.masked_sums(outputs.logits, batch), self.pairs.sums(outputs, batch)
        return LossSums(tokens.losses | pairs.losses, tokens.metrics | pairs.metrics)
