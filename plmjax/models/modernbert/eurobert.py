"""EuroBERT (Boizard et al., arXiv 2503.05500), an encoder like Llama, as values of ModernBERT's config.

    x = words[input_ids]
    L times:  x = x + attention(norm(x));  x = x + (silu(norm(x) W1) * (norm(x) V)) W2
    masked token:  softmax(W norm(x)_i)

Norms are RMS norms. All layers are global. Several query heads share a key and value head (grouped-query attention).
The output layer is a matrix of its own.

The label of a text is predicted from h_i = gelu(W norm(x)_i + b). `classifier_pooling` takes the mean of h_i over the
tokens ("late", the same as the mean of the tokens' logits), h of the first token ("bos"), or h of the mean of norm(x)
("mean").
"""

import dataclasses
from typing import Any, ClassVar

import jax

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Purpose, declare
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import mean_of_tokens
from plmjax.models.families.encoder import EncoderForMultipleChoice, EncoderForSequenceClassification, EncoderOutput
from plmjax.models.families.task_heads import TOKEN_HEADS
from plmjax.models.modernbert.modernbert import SYSTEM as MODERNBERT
from plmjax.models.modernbert.modernbert import ModernBertConfig


@dataclasses.dataclass(frozen=True)
class EuroBertConfig(ModernBertConfig):
    """Sizes of a EuroBERT: RMS norms, SwiGLU, global layers, an untied output layer (arXiv 2503.05500)."""

    vocab_size: int = 128_256
    """Vocabulary size."""
    num_hidden_layers: int = 12
    """Number of layers, L."""
    intermediate_size: int = 3072
    """Inner size of the gated feed-forward network, F."""
    hidden_activation: str = "silu"
    """Activation of the gate."""
    global_rope_theta: float = 250_000.0
    """Base of the wavelengths of the rotation; 10,000 in the phase with rows of 2,048 tokens."""
    tie_word_embeddings: bool = False
    """True if the word table is the output layer too."""
    decoder_bias: bool = False
    """True to add a bias to the logits."""
    attention_output_dropout: float = 0.0
    """Dropout rate of the output of attention."""
    classifier_pooling: str = "late"
    """The vector of a sequence: that of its first token (bos), or the mean of its tokens, before the head (mean) or
    after the head's first layer (late).
    """
    initialization: str = "normal"
    """Initial weights: scaled, normal or uniform."""
    pad_token_id: int = 128_001
    """Padding token id; transformers needs it."""
    bos_token_id: int | None = 128_000
    """Token id at the beginning of a text; transformers needs it."""
    eos_token_id: int | None = 128_001
    """Token id at the end of a text; transformers needs it."""

    norm: ClassVar[str] = "rms"
    norm_bias: ClassVar[bool] = False
    embedding_norm: ClassVar[bool] = False
    rotary_interleaved: ClassVar[bool] = False
    head: ClassVar[str] = "plain"
    global_attn_every_n_layers: ClassVar[int] = 1
    local_attention: ClassVar[int] = 128
    local_rope_theta: ClassVar[float] = 10_000.0
    poolings: ClassVar[tuple[str, ...]] = ("bos", "mean", "late")

    base = Size("EuroBERT of 210 million: 211,766,016 parameters, 310,266,624 with its head.")
    medium = Size(
        "EuroBERT of 610 million: 607,874,688 parameters, 755,625,600 with its head.",
        hidden_size=1152,
        num_hidden_layers=26,
        num_attention_heads=18,
        num_key_value_heads=6,
        intermediate_size=4096,
    )
    large = Size(
        "EuroBERT of 2.1 billion: 2,107,590,912 parameters, 2,403,092,736 with its head.",
        hidden_size=2304,
        num_hidden_layers=32,
        num_attention_heads=18,
        num_key_value_heads=6,
        intermediate_size=6144,
    )


class EuroBertForSequenceClassification(EncoderForSequenceClassification):
    """The encoder with a head of two layers: W' gelu(W x + b) + b' of the vector x of a sequence, or with "late"
    pooling W' y + b', where y is the mean of gelu(W x_i + b) over the tokens.
    """

    config: EuroBertConfig

    def setup(self) -> None:
        super().setup()
        size, axes = (self.config.hidden_size,), ("embed", "mlp")
        self.dense = Projection(size, axes, self.config.initializer, self.execution.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
        **inputs: Any,
    ) -> EncoderOutput:
        """Take and return the same as the encoder, with logits [B labels], or [B K labels] of packed sequences."""
        sequences = {"segment_ids": segment_ids, "cls_positions": cls_positions}
        output = self.encoder(input_ids, attention_mask, **sequences, deterministic=deterministic, **inputs)
        if self.config.classifier_pooling == "late":
            tokens = self.first_layer(output.last_hidden_state)
            pooled = mean_of_tokens(tokens, attention_mask, segment_ids, cls_positions)
        else:
            pooled = self.first_layer(output.pooler_output)
        return output.replace(logits=self.score(pooled, deterministic))

    def first_layer(self, x: jax.Array) -> jax.Array:
        """Return gelu(W x + b), [... D] -> [... D]."""
        return ACTIVATIONS["gelu"](self.dense(x))


class EuroBertForMultipleChoice(EncoderForMultipleChoice, EuroBertForSequenceClassification):
    """The encoder with the same head, which gives every choice one score."""


SYSTEM = declare(
    dataclasses.replace(
        MODERNBERT,
        config=EuroBertConfig,
        modules={
            **MODERNBERT.modules,
            Purpose.SEQUENCE_CLASSIFICATION: EuroBertForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: EuroBertForMultipleChoice,
            **TOKEN_HEADS,
        },
    )
)
