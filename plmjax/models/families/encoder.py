"""Base classes of encoders such as BERT: config, output and heads; their parameter groups and row template.

A head on the pooled first token of a row has one linear layer, as in BERT; a system with another head overrides it.
"""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
from jax.nn.initializers import Initializer

from plmjax.contracts.attentions import Attentions
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Window
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import ParameterGroup, Purpose
from plmjax.contracts.template import Template
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import check_activation
from plmjax.layers.projection import Projection
from plmjax.models.families.task_heads import score_choices


def encoder_sizes(layers: int, hidden: int, heads: int) -> dict[str, int]:
    """Return the fields of an encoder's size; the feed-forward network is four times as wide as the hidden states."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return sizes | {"intermediate_size": 4 * hidden}


@dataclasses.dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """Sizes of an encoder, named as in transformers' config.json; the defaults are BERT-Base, uncased.

    Raises:
        UserError: sizes that do not fit each other, an unknown activation, or a window that is odd or longer than rows.
    """

    vocab_size: int = 30522
    """Vocabulary size."""
    hidden_size: int = 768
    """Hidden size, D."""
    num_hidden_layers: int = 12
    """Number of layers, L."""
    num_attention_heads: int = 12
    """Number of attention heads, N."""
    intermediate_size: int = 3072
    """Inner size of the feed-forward network, F."""
    hidden_act: str = "gelu_new"
    """Activation: gelu_new (tanh form), gelu (exact) or relu."""
    hidden_dropout_prob: float = 0.1
    """Dropout rate of the embeddings and of each sublayer's output."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout rate of attention probabilities."""
    max_position_embeddings: int = 512
    """Maximum sequence length."""
    type_vocab_size: int = 2
    """Number of token types: first and second text."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights, before truncation at two standard deviations.
    """
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalisation."""
    pad_token_id: int = 0
    """Padding token id; transformers needs it, attention reads the mask instead."""
    bos_token_id: int | None = None
    """Token id at the beginning of a decoder's text, for transformers; None for an encoder."""
    eos_token_id: int | None = None
    """Token id at the end of a decoder's text; None for an encoder."""
    attention_window: int | None = None
    """Number of tokens around a token that it sees, half of them on each side; None for the whole row."""

    types: ClassVar[tuple[float, float]] = FROM_1
    """Range of `type_vocab_size`."""
    classifier_dropout: ClassVar[float | None] = None
    """Dropout rate of the heads of downstream tasks; None is `hidden_dropout_prob`. A subclass may make it a field."""
    field_names: ClassVar[dict[str, str]] = {
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "longest": "max_position_embeddings",
        "padding_token": "pad_token_id",
    }

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "hidden_size")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), type_vocab_size=self.types)
        check_ranges("model", self, initializer_range=FROM_0)
        check_ranges("model", self, hidden_dropout_prob=FRACTION, attention_probs_dropout_prob=FRACTION)
        if self.classifier_dropout is not None:
            check_ranges("model", self, classifier_dropout=FRACTION)
        check_ranges("model", self, layer_norm_eps=ABOVE_0)
        self.check_heads()
        check_activation(self.hidden_act)
        self.check_window()

    def check_heads(self) -> None:
        """Raise UserError for features that attention cannot divide among its heads."""
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"Expected a hidden size that divides by the heads, found {self.hidden_size} and "
                f"{self.num_attention_heads} heads; change --model.hidden_size or --model.num_attention_heads."
            )

    def check_window(self) -> None:
        """Raise UserError for a window that is odd or longer than the rows."""
        if self.attention_window is None:
            return
        if self.attention_window < 2 or self.attention_window % 2 or self.attention_window > self.longest:
            raise UserError(
                f"Expected --model.attention_window of an even number of tokens from 2 to {self.longest}, the longest "
                f"row, found {self.attention_window}; change it, or raise {self.option('longest')}."
            )

    @property
    def windows(self) -> tuple[Window, ...]:
        """The window of all layers, if there is one."""
        half = (self.attention_window or 0) // 2
        return (Window(half, half),) if half else ()

    @property
    def widest_window(self) -> int | None:
        return self.attention_window

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of embeddings, sublayers and attention probabilities."""
        return dataclasses.replace(self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    @property
    def head_dropout(self) -> float:
        """Dropout rate of the input of a downstream task's head: `classifier_dropout` if it is set."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @property
    def head_size(self) -> int:
        """Number of features of an attention head, H."""
        return self.hidden_size // self.num_attention_heads

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        """Return the model FLOPs of the layers in one training step: matrix products, backward = 2 x forward.

        6 (4 D^2 + 2 D F + 2 T D) per token and layer. With a window of w tokens, w + 1 keys take the place of T.
        """
        window = self.attention_window
        keys = sequence_length if window is None else min(sequence_length, window + 1)
        return 6.0 * batch_size * sequence_length * self.layers_products(keys)

    def layers_products(self, keys: int) -> int:
        """Return the multiplications of all layers for one token that sees `keys` keys."""
        size = self.hidden_size
        return self.num_hidden_layers * (4 * size**2 + 2 * size * self.intermediate_size + 2 * keys * size)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` gathered positions per row. Matrix products only: 6 (L (4 D^2 + 2 D F) + 2 L T D) per
        token and 6 (D^2 + D V) per prediction.
        """
        head = self.hidden_size**2 + self.hidden_size * self.vocab_size
        return self.layers_flops(batch_size, sequence_length) + 6.0 * batch_size * predictions * head

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, truncated at two standard deviations.

        As in TensorFlow, the standard deviation after truncation is 0.88 x `initializer_range`.
        """
        return nn.initializers.truncated_normal(self.initializer_range)


@flax.struct.dataclass
class EncoderOutput(Attentions):
    """The output of the modules of an encoder; fields that a module does not compute are None.

    last_hidden_state: [B T D].
    hidden_states: [L+1 B T D], the embeddings first; only if requested.
    pooler_output: [B D], or [B K D] if `cls_positions` are given.
    logits: float32; masked language model [B T V], or [B P V] if `masked_positions` are given; classification of
        sequences [B labels] (or [B K labels]), of tokens [B T labels]; replaced tokens [B T]; multiple choice [B C] (or
        [B C K]).
    seq_relationship_logits: float32 [B 2] (or [B K 2]), of BERT and MobileBERT; class 0 means that the second text
        follows the first.
    sop_logits: float32 [B 2] (or [B K 2]), of ALBERT; class 0 means that the two texts are in their order.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    pooler_output: jax.Array | None = None
    logits: jax.Array | None = None
    seq_relationship_logits: jax.Array | None = None
    sop_logits: jax.Array | None = None


class EncoderForSequenceClassification(nn.Module):
    """The encoder with dropout and a linear layer on the pooled [CLS]; with one label it is a regression."""

    config: EncoderConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((self.num_labels,), ("embed", None), config.initializer, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> EncoderOutput:
        """Take and return the same as the encoder, with logits [B labels]."""
        output = self.encoder(input_ids, deterministic=deterministic, **inputs)
        return output.replace(logits=self.score(output.pooler_output, deterministic))

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... labels]; a system with another head overrides this."""
        return self.classifier(self.dropout(pooled, deterministic))


class EncoderForMultipleChoice(EncoderForSequenceClassification):
    """The encoder with dropout and a linear layer on the pooled [CLS], which gives every choice one score."""

    num_labels: ClassVar[int] = 1

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as the encoder, for C adjacent choices of a question: int [B C T] -> logits [B C].

        With `cls_positions` int [B C K] logits are [B C K]. Hidden states have B C rows, one for each choice.
        """
        output, scores = score_choices(super().__call__, input_ids, **inputs)
        return output.replace(logits=scores)


def encoder_parts(config: EncoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, each layer, and other parts of the encoder, such as a pooler."""
    name = config.system.name
    layers = (ParameterGroup((f"{name}/encoder/layers",), layer) for layer in range(config.depth))
    return ParameterGroup((f"{name}/embeddings",)), *layers, ParameterGroup((name,))


def encoder_template(config: EncoderConfig) -> Template:
    """Return the template [CLS] A [SEP] and [CLS] A [SEP] B [SEP]."""
    return Template().with_types(config.type_vocab_size)
