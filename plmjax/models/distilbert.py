"""DistilBERT: a distilled version of BERT (Sanh et al. 2019, arXiv 1910.01108; huggingface examples/distillation).

DistilBERT is BERT with half of the layers, and without token types, pooler and next sentence prediction. It is trained
to imitate a BERT, and starts from every second layer of that BERT (section 3):

    x = norm(words[input_ids] + positions[0..T))
    L times:  x = norm(x + attention(x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    label of text:  W' relu(W x_[CLS] + b) + b'

The width is that of the teacher: the paper finds that the number of layers determines the speed more than the width
does, and a student of the same width can take the teacher's parameters. GELU is the exact form. The normal distribution
of the initial weights is not truncated. As in the released code there is no dropout after attention, only within it.

This file has the model, which can also be pretrained without a teacher, by the masked language model alone.

Deviation: the fields of the config have the same names as in BERT, so that a student and its teacher have the same
options. In transformers seven of them have other names (plmjax/interop/distilbert.py).
Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself; the paper pads.
Deviation: positions begin with random values; transformers can begin with sinusoids (`sinusoidal_pos_embds`).
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.errors import FRACTION, UserError, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.models.bert import BertEmbeddings, BertEncoder, BertForMaskedLM, BertLayer, BertModel
from plmjax.models.families.encoder import (
    EncoderConfig,
    EncoderForMultipleChoice,
    EncoderForSequenceClassification,
    encoder_parts,
    encoder_sizes,
    encoder_template,
)
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification


@dataclasses.dataclass(frozen=True)
class DistilBertConfig(EncoderConfig):
    """Sizes of a DistilBERT; the defaults are DistilBERT-Base, uncased.

    Arguments override the fields of a named size: `DistilBertConfig.base(vocab_size=8192)`.

    Raises:
        UserError: as `EncoderConfig`, or a head's dropout rate that is out of range.
    """

    num_hidden_layers: int = 6
    """Number of layers, L."""
    hidden_act: str = "gelu"
    """Activation: gelu (exact), gelu_new (tanh form) or relu."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    seq_classif_dropout: float = 0.2
    """Dropout rate between the two layers of the heads for labels of texts and for choices."""
    qa_dropout: float = 0.1
    """Dropout rate of the input of the head for answers."""

    type_vocab_size: ClassVar[int] = 1
    """Tokens have no types."""
    layer_norm_eps: ClassVar[float] = 1e-12
    """Added to the variance in layer normalisation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, seq_classif_dropout=FRACTION, qa_dropout=FRACTION)

    base = Size(
        "DistilBERT-Base, uncased English: 66,985,530 parameters with its masked language model's head.",
        **encoder_sizes(6, 768, 12),
    )
    base_cased = Size("DistilBERT-Base, cased English.", vocab_size=28996, **encoder_sizes(6, 768, 12))
    base_multilingual = Size("DistilBERT-Base, cased, 104 languages.", vocab_size=119547, **encoder_sizes(6, 768, 12))
    tiny = Size("Two layers of 128, as BERT's; none was published.", **encoder_sizes(2, 128, 2))

    @property
    def initializer(self) -> Initializer:
        return nn.initializers.normal(self.initializer_range)


class DistilBertEmbeddings(BertEmbeddings):
    """norm(words + positions), without a table of token types."""

    config: DistilBertConfig

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array | None, positions: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Map token ids and positions, int [B T] each, to [B T features].

        Raises:
            UserError: the tokens have types.
        """
        if token_type_ids is not None:
            raise UserError(
                "Expected tokens without types, which DistilBERT does not read, found token_type_ids; leave them out, "
                "or take a layout of rows without types, such as FullSentences."
            )
        x = self.layer_norm(self.word_embeddings(input_ids) + self.position_embeddings(positions))
        return shard_hidden(self.dropout(x, deterministic))


class DistilBertLayer(BertLayer):
    """BERT's layer without dropout after its attention."""

    config: DistilBertConfig

    def drop_attention_output(self, x: jax.Array, dropout: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return x


class DistilBertEncoder(BertEncoder):
    """L layers whose parameters are stacked [L ...] under `layers`."""

    config: DistilBertConfig
    layer: ClassVar[Callable[..., nn.Module]] = DistilBertLayer


class DistilBertModel(BertModel):
    """Embeddings and encoder; with `pooling` the `pooler_output` is the hidden state of [CLS] itself."""

    config: DistilBertConfig
    pooling: bool = False
    encoder_class: ClassVar[Callable[..., nn.Module]] = DistilBertEncoder

    def setup(self) -> None:
        self.embeddings = DistilBertEmbeddings(self.config, self.config.hidden_size, self.execution)
        self.encoder = self.encoder_class(self.config, self.execution)

    def pool(self, x: jax.Array) -> jax.Array:
        return x


class DistilBertForMaskedLM(BertForMaskedLM):
    """DistilBERT with the masked language model's head."""

    config: DistilBertConfig


class ClassificationHead(nn.Module):
    """W' dropout(relu(W x + b)) + b' of [CLS]'s hidden state (transformers' DistilBertForSequenceClassification)."""

    config: DistilBertConfig
    execution: Execution
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... outputs]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        x = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="dense")(x)
        x = Dropout(config.seq_classif_dropout)(ACTIVATIONS["relu"](x), deterministic)
        return Projection((self.outputs,), ("mlp", None), init, dtype, logits=True, name="output")(x)


class DistilBertForSequenceClassification(EncoderForSequenceClassification):
    """DistilBERT with a head of two layers on [CLS], initialized for the task."""

    config: DistilBertConfig

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        return self.classifier(pooled, deterministic)


class DistilBertForMultipleChoice(EncoderForMultipleChoice):
    """DistilBERT with a head of two layers on [CLS] of every choice, initialized for the task."""

    config: DistilBertConfig

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        return self.classifier(pooled, deterministic)


class DistilBertForQuestionAnswering(QuestionAnswering):
    """DistilBERT with the head for answer spans, which has dropout on its input."""

    config: DistilBertConfig

    def read(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return Dropout(self.config.qa_dropout)(x, deterministic)


SYSTEM = declare(
    System(
        DistilBertConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: DistilBertForMaskedLM,
            Purpose.MASKED_TOKENS: DistilBertForMaskedLM,
            Purpose.ENCODING: DistilBertModel,
            Purpose.EMBEDDING: DistilBertModel,
            Purpose.SEQUENCE_CLASSIFICATION: DistilBertForSequenceClassification,
            Purpose.TOKEN_CLASSIFICATION: TokenClassification,
            Purpose.QUESTION_ANSWERING: DistilBertForQuestionAnswering,
            Purpose.MULTIPLE_CHOICE: DistilBertForMultipleChoice,
        },
        name="distilbert",
        template=encoder_template,
        parts=encoder_parts,
    )
)
