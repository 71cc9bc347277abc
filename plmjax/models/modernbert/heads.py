"""The heads of ModernBERT: masked tokens, classification of texts and tokens, question answering, multiple choice."""

from typing import Any

import flax.linen as nn
import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.system import Purpose
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import gather_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.encoder import EncoderForMultipleChoice, EncoderForSequenceClassification, EncoderOutput
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification


class PredictionHead(nn.Module):
    """norm(gelu(W x)), [... D] -> [... D]."""

    config: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, dtype = self.config, self.execution.dtype
        size, axes = (config.hidden_size,), ("embed", "mlp")
        x = Projection(size, axes, config.initializer, dtype, use_bias=False, name="transform")(x)
        return config.norm_of(self.execution, "norm")(ACTIVATIONS["gelu"](x))


class MaskedLanguageModelHead(nn.Module):
    """Logits over the vocabulary. The output layer is the word table, or a matrix of its own."""

    config: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, words: Embedding) -> jax.Array:
        """Map [B P D] to float32 [B P V]. The head sees one axis of B P positions."""
        config, dtype = self.config, self.execution.dtype
        rows = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1])
        if config.head == "transformed":
            x = PredictionHead(config, self.execution, name="head")(x)
        if config.tie_word_embeddings:
            logits = words.attend(x)
        else:
            size, axes, init = (config.vocab_size,), ("embed", "vocab"), config.initializer
            logits = Projection(size, axes, init, dtype, logits=True, use_bias=False, name="decoder")(x)
        if config.decoder_bias:
            logits += self.param("bias", as_bias(nn.initializers.zeros_init(), ("vocab",)), (config.vocab_size,))
        return nn.with_logical_constraint(logits.reshape(*rows, -1), ("batch", "length", "vocab"))


class ModernBertForMaskedLM(nn.Module):
    """The encoder with the masked language model's head."""

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.masked_language_model = MaskedLanguageModelHead(self.config, self.execution)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
        """Take and return the same as the encoder, with logits over the vocabulary.

        `masked_positions` int [B P] limits the logits to these tokens.
        """
        output = self.encoder(input_ids, **inputs)
        hidden = gather_tokens(output.last_hidden_state, masked_positions)
        return output.replace(logits=self.masked_language_model(hidden, self.encoder.word_embeddings))


class TwoLayers:
    """Mixin of a head with two layers: `PredictionHead`, then the `classifier` of the class that it extends."""

    def setup(self) -> None:
        super().setup()
        self.head = PredictionHead(self.config, self.execution)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... labels]."""
        return self.classifier(self.dropout(self.head(pooled), deterministic))


class ModernBertForSequenceClassification(TwoLayers, EncoderForSequenceClassification):
    """The encoder with a head of two layers on the vector of a sequence."""


class ModernBertForMultipleChoice(TwoLayers, EncoderForMultipleChoice):
    """The encoder with a head of two layers on the vector of every choice."""


class ModernBertForTokenClassification(TokenClassification):
    """The encoder with a head of two layers on every token."""

    config: ModelConfig

    def read(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Return the output of `PredictionHead` with dropout, [B T D]."""
        return super().read(PredictionHead(self.config, self.execution, name="head")(x), deterministic)


class ModernBertForQuestionAnswering(QuestionAnswering):
    """The encoder with a head of two layers that scores the start and the end of an answer."""

    config: ModelConfig

    def read(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Return the output of `PredictionHead` with dropout, [B T D]."""
        x = PredictionHead(self.config, self.execution, name="head")(x)
        return Dropout(self.config.head_dropout)(x, deterministic)
