"""NeoBERT (Le Breton et al., arXiv 2502.19587), as values of ModernBERT's config.

It differs from EuroBERT in four points: it is deeper; each query head has its own key and value head; the rotation
pairs neighbouring features; the logits have a bias. The label of a text is predicted from its first token by two layers
with a tanh between them (chandar-lab/NeoBERT, model.py).
"""

import dataclasses
from typing import ClassVar

import jax

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Purpose, declare
from plmjax.models.families.encoder import EncoderForMultipleChoice, EncoderForSequenceClassification
from plmjax.models.families.task_heads import ClassificationHead
from plmjax.models.modernbert.eurobert import SYSTEM as EUROBERT
from plmjax.models.modernbert.eurobert import EuroBertConfig


@dataclasses.dataclass(frozen=True)
class NeoBertConfig(EuroBertConfig):
    """Sizes of a NeoBERT: a EuroBERT whose rotation pairs neighbouring features (arXiv 2502.19587)."""

    vocab_size: int = 30_522
    """Vocabulary size."""
    num_hidden_layers: int = 28
    """Number of layers, L."""
    intermediate_size: int = 2048
    """Inner size of the gated feed-forward network, F."""
    max_position_embeddings: int = 4096
    """Maximum sequence length."""
    global_rope_theta: float = 10_000.0
    """Base of the wavelengths of the rotation."""
    classifier_dropout: float = 0.1
    """Dropout rate before each layer of a downstream task's head."""
    classifier_pooling: str = "cls"
    """The vector of a sequence: that of its first token."""
    initialization: str = "uniform"
    """Initial weights: scaled, normal or uniform."""
    pad_token_id: int = 0
    """Padding token id."""
    bos_token_id: int | None = None
    """Token id at the beginning of a text; nothing here reads it."""
    eos_token_id: int | None = None
    """Token id at the end of a text; nothing here reads it."""

    num_key_value_heads: ClassVar[None] = None
    hidden_activation: ClassVar[str] = "silu"
    rotary_interleaved: ClassVar[bool] = True
    attention_bias: ClassVar[bool] = False
    mlp_bias: ClassVar[bool] = False
    decoder_bias: ClassVar[bool] = True
    tie_word_embeddings: ClassVar[bool] = False
    poolings: ClassVar[tuple[str, ...]] = ("cls",)

    base = Size("NeoBERT: 221,665,536 parameters, 245,136,954 with its head.")


class NeoBertForSequenceClassification(EncoderForSequenceClassification):
    """The encoder with a head of two layers on the first token of a sequence."""

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        return self.classifier(pooled, deterministic)


class NeoBertForMultipleChoice(EncoderForMultipleChoice, NeoBertForSequenceClassification):
    """The encoder with the same head, which gives every choice one score."""


SYSTEM = declare(
    dataclasses.replace(
        EUROBERT,
        config=NeoBertConfig,
        modules={
            **EUROBERT.modules,
            Purpose.SEQUENCE_CLASSIFICATION: NeoBertForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: NeoBertForMultipleChoice,
        },
    )
)
