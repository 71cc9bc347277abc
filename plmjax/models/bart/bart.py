"""BART: denoising sequence-to-sequence pre-training (Lewis et al. 2019, arXiv 1910.13461; fairseq models/bart).

BART is a Transformer. Its encoder reads a corrupted text, and its decoder generates the original text. There are four
differences from the original Transformer. Positions are learned, separately for each side. Words are not scaled.
Embeddings are normalised before the first layer. GELU replaces ReLU:

    source:  x_s = norm(words[source_s] + positions[s])
    target:  y_t = norm(words[target_t] + decoder_positions[t]); the first token is </s>
    next token:  softmax(words . y_t)
    a task:      W tanh(V y_t + b) + c at the text's last </s>; both sides read the text

For a task the decoder reads </s> and then the text, shifted by one token. So its hidden state at the position of the
text's last </s> depends on the whole text (section 3.1; fairseq tasks/sentence_prediction.py).

Deviation: the position tables have two rows that are never read, as in the released models; they count as parameters.
Deviation: a row may hold several packed texts (`segment_ids`, `decoder_segment_ids`), and each attends only to itself.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_0, check_ranges
from plmjax.layers.encoder_decoder import EncoderDecoderOutput
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.words.embeddings import Embedding, check_ids
from plmjax.models.families.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderForConditionalGeneration,
    both_sides,
    encoder_decoder_cache,
    encoder_decoder_parts,
)
from plmjax.models.families.task_heads import LastTokenClassification, QuestionAnswering
from plmjax.models.transformer import LAYER_NORM_EPSILON, TransformerModel


@dataclasses.dataclass(frozen=True)
class BartConfig(EncoderDecoderConfig):
    """Sizes of a BART; the defaults are the base model.

    Arguments override the fields of a named size: `BartConfig.base(vocab_size=8192)`.
    """

    vocab_size: int = 50265
    """Vocabulary size."""
    d_model: int = 768
    """Hidden size, D."""
    encoder_attention_heads: int = 12
    """Number of attention heads of the encoder."""
    decoder_attention_heads: int = 12
    """Number of attention heads of the decoder, N."""
    encoder_ffn_dim: int = 3072
    """Inner size of the encoder's feed-forward network."""
    decoder_ffn_dim: int = 3072
    """Inner size of the decoder's feed-forward network, F."""
    activation_function: str = "gelu"
    """Activation: gelu (exact), gelu_new (tanh form), relu or swish."""
    classifier_dropout: float = 0.0
    """Dropout rate inside the head of a downstream task, before each of its two layers."""
    init_std: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    bos_token_id: int = 0
    """Token id at the beginning of a text."""
    pad_token_id: int = 1
    """Padding token id; the model itself does not need it."""
    eos_token_id: int = 2
    """Token id of </s>, at the end of a text."""
    decoder_start_token_id: int = 2
    """First token id that the decoder reads: </s>."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, classifier_dropout=FRACTION, init_std=FROM_0)

    base = Size("139,420,416 parameters.")
    large = Size("406,291,456 parameters.", d_model=1024, **both_sides(layers=12, heads=16, inner=4096))
    tiny = Size("Two layers of 128 on each side.", d_model=128, **both_sides(layers=2, heads=2, inner=512))

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.init_std)

    @property
    def head_dropout(self) -> float:
        return self.classifier_dropout

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step, as for every encoder-decoder.

        With 0 predictions, both sides read the whole row, as they do for the head of a task.
        """
        read = 6.0 * batch_size * self.layers_products(sequence_length, sequence_length)
        return super().train_flops(batch_size, sequence_length, predictions) if predictions else read


class BartModel(TransformerModel):
    """The Transformer's two stacks of layers, with the embeddings of BART."""

    config: BartConfig
    first_position: ClassVar[int] = 2
    """Row of a position table for the first token: in fairseq positions count from the padding token's id + 1."""

    def setup(self) -> None:
        super().setup()
        config, dtype = self.config, self.execution.dtype
        before, size, init = self.first_position, config.d_model, config.initializer
        self.encoder_positions = Embedding(before + config.longest, size, None, init, dtype)
        self.encoder_layer_norm = LayerNorm(LAYER_NORM_EPSILON, dtype)
        self.decoder_positions = Embedding(before + config.longest_target, size, None, init, dtype)
        self.decoder_layer_norm = LayerNorm(LAYER_NORM_EPSILON, dtype)

    def source_vectors(self, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Compute the input of the encoder's first layer, before dropout: ids and positions int [B S] -> [B S D]."""
        rows = self._rows(positions, self.config.longest)
        return self.encoder_layer_norm(self.words(input_ids) + self.encoder_positions(rows))

    def target_vectors(self, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Compute the input of the decoder's first layer, before dropout: ids and positions int [B T] -> [B T D]."""
        rows = self._rows(positions, self.config.longest_target)
        return self.decoder_layer_norm(self.words(input_ids) + self.decoder_positions(rows))

    def _rows(self, positions: jax.Array, count: int) -> jax.Array:
        check_ids(positions, count, f"the {count} positions of the model")
        return positions + self.first_position

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        decoder_input_ids: jax.Array | None = None,
        **inputs: Any,
    ) -> EncoderDecoderOutput:
        """Take and return the same as `TransformerModel`.

        Without a target the decoder reads </s> and then the source, shifted by one token.
        """
        if decoder_input_ids is None:
            positions, segment_ids = inputs.get("positions"), inputs.get("segment_ids")
            begins = jnp.arange(input_ids.shape[1]) == 0 if positions is None else positions == 0
            start = self.config.decoder_start_token_id
            decoder_input_ids = jnp.where(begins, start, jnp.roll(input_ids, 1, axis=1))
            inputs |= {"decoder_positions": positions, "decoder_segment_ids": segment_ids}
        return super().__call__(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, **inputs)


class BartForConditionalGeneration(EncoderDecoderForConditionalGeneration):
    """BART, whose word table is the output layer."""

    config: BartConfig


class BartForSequenceClassification(LastTokenClassification):
    """BART with a classifier for texts. Both sides read a text.

    The decoder's hidden state at the last token passes a dense layer, tanh and a linear layer.
    """

    config: BartConfig


def bart_parts(config: BartConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings with their norms, each encoder layer, and each decoder layer."""
    words, *layers = encoder_decoder_parts(config)
    own = (
        f"{config.system.name}/{side}_{part}" for side in ("encoder", "decoder") for part in ("positions", "layer_norm")
    )
    return ParameterGroup((*words.prefixes, *own)), *layers


SYSTEM = declare(
    System(
        BartConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: BartForConditionalGeneration,
            Purpose.CAUSAL_LM: BartForConditionalGeneration,
            Purpose.SEQ2SEQ: BartForConditionalGeneration,
            Purpose.ENCODING: BartModel,
            Purpose.EMBEDDING: BartModel,
            Purpose.SEQUENCE_CLASSIFICATION: BartForSequenceClassification,
            Purpose.QUESTION_ANSWERING: QuestionAnswering,
        },
        name="bart",
        template=lambda config: Template("cls A sep", "cls A sep sep B sep", "last"),  # <s> A </s></s> B </s>
        parts=bart_parts,
        cache=encoder_decoder_cache,
        token_table="bart/words/embedding",
    )
)
