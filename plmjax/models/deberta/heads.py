"""The heads of DeBERTa: masked tokens, classification of texts, multiple choice."""

from typing import ClassVar

import flax.linen as nn
import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.projection import Projection
from plmjax.models.bert import BertForMaskedLM
from plmjax.models.families.encoder import EncoderForMultipleChoice, EncoderForSequenceClassification


class DebertaForMaskedLM(BertForMaskedLM):
    """The encoder with a head on its last layer. There is no enhanced mask decoder, as in transformers."""

    config: ModelConfig


class ContextPooler(nn.Module):
    """activation(W dropout(x) + b) of the hidden state of [CLS] (microsoft/DeBERTa deberta/pooling.py)."""

    config: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to [... D]."""
        config, size = self.config, (self.config.hidden_size,)
        x = Dropout(config.pooler_dropout)(x, deterministic)
        dense = Projection(size, ("embed", "mlp"), config.initializer, self.execution.dtype, name="dense")
        return ACTIVATIONS[config.pooler_hidden_act](dense(x))


class DebertaForSequenceClassification(EncoderForSequenceClassification):
    """The encoder with a head of two layers on [CLS]."""

    config: ModelConfig

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.pooler = ContextPooler(config, self.execution)
        self.dropout = Dropout(config.pooled_dropout)
        self.classifier = Projection((self.num_labels,), ("mlp", None), config.initializer, dtype, logits=True)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        return self.classifier(self.dropout(self.pooler(pooled, deterministic), deterministic))


class DebertaForMultipleChoice(DebertaForSequenceClassification, EncoderForMultipleChoice):
    """The encoder with a head of two layers on [CLS] of every choice."""

    num_labels: ClassVar[int] = 1
