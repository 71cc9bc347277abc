"""BERT's pretraining task: the masked language model and next sentence prediction, added."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from plmjax.layers.execution import Execution
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_sentence import next_sentence_sums, next_sentence_weight
from plmjax.objectives.objective import Batch, Sums, apply


@dataclasses.dataclass(frozen=True)
class BertPretraining(MaskedLanguageModel):
    """mean nats of the hidden tokens + mean nats of the sentence pairs (google-research/bert run_pretraining.py)."""

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """The encoder with both heads."""
        return config.for_pretraining(execution)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """As the masked language model, and where the packed sequences begin."""
        return super().model_inputs(batch) | {"cls_positions": batch["cls_positions"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Predictions and sequences."""
        return super().weights(batch) | {"nsp": next_sentence_weight(batch)}

    def sums(self, module: nn.Module, params: Any, carry: Any, batch: Batch, dropout: jax.Array | None) -> Sums:
        """Both parts of one forward pass."""
        outputs = apply(self, module, params, batch, dropout)
        tokens = self.masked_sums(outputs.logits, batch, carry)
        pairs = next_sentence_sums(outputs.seq_relationship_logits, batch)
        return Sums(tokens.losses | pairs.losses, tokens.metrics | pairs.metrics, carry)
