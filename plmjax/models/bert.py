"""BERT: deep bidirectional transformers (Devlin et al., NAACL 2019, arXiv 1810.04805; google-research/bert).

A transformer encoder sees the whole text, both sides of every token. It learns by restoring hidden tokens from what
surrounds them (the masked language model) and by telling whether one sentence follows another (next sentence):

    x = norm(words[input_ids] + positions[0..T) + types[token_type_ids])
    L times:  x = norm(x + attention(x, x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    next sentence:  softmax(W' tanh(W'' x_[CLS] + b'') + b')

Normalisation comes after each sum. The output layer of the masked language model is the word table itself.

Deviation: rows may hold several packed sequences (`segment_ids`), each attending to itself alone; the paper pads.
Deviation: `hidden_act` defaults to GELU's tanh form, as in the released code; transformers' default is the exact one.
"""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax

from plmjax.layers.encoder import (
    ClassifierDropoutConfig,
    Encoder,
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForSequenceClassification,
    EncoderModel,
    EncoderOutput,
    InputEmbeddings,
)
from plmjax.layers.execution import Execution
from plmjax.layers.projection import Projection


@dataclasses.dataclass(frozen=True)
class BertConfig(ClassifierDropoutConfig):
    """Sizes of a BERT; the defaults are BERT-Base, uncased.

    The named sizes take overrides: `BertConfig.base(vocab_size=8192)`.
    """

    @classmethod
    def base(cls, **overrides: Any) -> Self:
        """BERT-Base, uncased English: 110,106,428 parameters with its pretraining heads."""
        return cls._sized(12, 768, 12, overrides)

    @classmethod
    def large(cls, **overrides: Any) -> Self:
        """BERT-Large, uncased English: 336,226,108 parameters with its pretraining heads."""
        return cls._sized(24, 1024, 16, overrides)

    @classmethod
    def base_cased(cls, **overrides: Any) -> Self:
        """BERT-Base, cased English."""
        return cls._sized(12, 768, 12, overrides, vocab_size=28996)

    @classmethod
    def large_cased(cls, **overrides: Any) -> Self:
        """BERT-Large, cased English."""
        return cls._sized(24, 1024, 16, overrides, vocab_size=28996)

    @classmethod
    def base_chinese(cls, **overrides: Any) -> Self:
        """BERT-Base, Chinese."""
        return cls._sized(12, 768, 12, overrides, vocab_size=21128)

    @classmethod
    def tiny(cls, **overrides: Any) -> Self:
        """Two layers of 128 (Turc et al., arXiv 1908.08962, as are mini, small and medium)."""
        return cls._sized(2, 128, 2, overrides)

    @classmethod
    def mini(cls, **overrides: Any) -> Self:
        """Four layers of 256."""
        return cls._sized(4, 256, 4, overrides)

    @classmethod
    def small(cls, **overrides: Any) -> Self:
        """Four layers of 512."""
        return cls._sized(4, 512, 8, overrides)

    @classmethod
    def medium(cls, **overrides: Any) -> Self:
        """Eight layers of 512."""
        return cls._sized(8, 512, 8, overrides)

    def for_pretraining(self, execution: Execution) -> "BertForPreTraining":
        """The encoder with the masked language model's and the next sentence head."""
        return BertForPreTraining(self, execution)

    def for_masked_language_model(self, execution: Execution) -> "BertForMaskedLM":
        """The encoder with the masked language model's head alone."""
        return BertForMaskedLM(self, execution)

    def encoder(self, execution: Execution, *, pooling: bool = False) -> "BertModel":
        """The encoder alone, under the name that its parameters have in every other module."""
        return BertModel(self, execution, pooling, name="bert")

    def for_sequence_classification(self, outputs: int, execution: Execution) -> "BertForSequenceClassification":
        """The module that labels whole rows, or gives each `outputs` numbers."""
        return BertForSequenceClassification(self, execution, outputs)

    def for_multiple_choice(self, execution: Execution) -> "BertForMultipleChoice":
        """The module that gives every choice of a question a number."""
        return BertForMultipleChoice(self, execution)


class BertModel(EncoderModel):
    """Embeddings, encoder and, unless `pooling` is off, the pooler tanh(W x_[CLS] + b)."""

    config: BertConfig

    def setup(self) -> None:
        """The three parts."""
        self.embeddings = InputEmbeddings(self.config, self.config.hidden_size, self.execution)
        self.encoder = Encoder(self.config, self.execution)
        if self.pooling:
            size = self.config.hidden_size
            self.pooler = Projection((size,), ("embed", "mlp"), self.config.initializer, self.execution.dtype)


class BertForPreTraining(EncoderForMaskedLM):
    """BERT with both of its pretraining heads."""

    config: BertConfig
    pooling: ClassVar[bool] = True

    def setup(self) -> None:
        """The encoder and the two heads."""
        super().setup()
        init, dtype = self.config.initializer, self.execution.dtype
        self.next_sentence = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """As `BertForMaskedLM`."""
        output = super().__call__(input_ids, **inputs)
        return output.replace(seq_relationship_logits=self.next_sentence(output.pooler_output))


class BertForMaskedLM(EncoderForMaskedLM):
    """BERT with the masked language model's head alone and no pooler."""

    config: BertConfig


class BertForNextSentencePrediction(nn.Module):
    """BERT with the next sentence head alone."""

    config: BertConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """The encoder and the head."""
        init, dtype = self.config.initializer, self.execution.dtype
        self.encoder = self.config.encoder(self.execution, pooling=True)
        self.next_sentence = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """As `BertModel`, with `seq_relationship_logits`."""
        output = self.encoder(input_ids, **inputs)
        return output.replace(seq_relationship_logits=self.next_sentence(output.pooler_output))


class BertForSequenceClassification(EncoderForSequenceClassification):
    """BERT with a linear layer on the pooled [CLS]."""

    config: BertConfig


class BertForMultipleChoice(EncoderForMultipleChoice):
    """BERT with a linear layer on the pooled [CLS] of every choice."""

    config: BertConfig
