"""MobileBERT: a thin BERT-Large for small devices (Sun et al., ACL 2020, arXiv 2004.02984; google-research/mobilebert).

MobileBERT has as many layers as BERT-Large. Between the layers the hidden states have D = 512 features. Within a layer,
behind a bottleneck, there are only I = 128 (section 3.1):

    x = norm(W [next word; word; previous word] + positions[0..T) + types[token_type_ids])     W: 3 E -> D
    L times:  z = norm(W1 x);  s = norm(W2 x)                                                  W1, W2: D -> I
              z = norm(z + attention(queries s, keys s, values x))
              M times:  z = norm(z + feed_forward(z))
              x = norm(x + W3 z)                                                               W3: I -> D
    masked token:   softmax([words; others] . layer_norm(relu(W4 x_i + b)) + c)                tables of E and D - E

- Stacked feed-forward networks (section 3.2): a bottleneck takes more parameters from the feed-forward network than
  from attention, so M = 4 of them follow each other.
- NoNorm (section 3.3) has the scale and the bias of a layer normalization without its statistics, which are slow on a
  phone. The activation is ReLU.
- Embedding factorization (section 3.4): the table of words has E = 128 features, and each token reads the words on both
  sides of it too.

IB-BERT-Large is its teacher. Its bottleneck is inverted: within a layer there are I = 1024 features, the width of
BERT-Large, and between the layers 512 as in MobileBERT, which imitates these hidden states layer by layer. It has layer
normalization, one feed-forward network with GELU, and attention that reads x alone. MobileBERT-TINY has M = 2, and its
attention reads z alone. All are sizes of one config, as in the released code.

Deviation: a token reads only the words of its own sequence beside it, and zeros beyond its ends. In the released code
and in transformers the last word of a text reads the [PAD] behind it, so that its vector depends on the padding.
Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself; the paper pads.
Deviation: padding is hidden from attention, as in BERT and transformers; today's released code sets its scores to -6.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.parameters import as_norm_bias, as_scale
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.errors import FROM_1, UserError, check_choice, check_ranges
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection, layer_projection
from plmjax.layers.tokens import check_token_inputs, first_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.bert import (
    BertEncoder,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
    MaskedLanguageModelHead,
)
from plmjax.models.families.encoder import (
    EncoderConfig,
    EncoderForMultipleChoice,
    EncoderForSequenceClassification,
    EncoderOutput,
    encoder_parts,
    encoder_template,
)
from plmjax.models.families.task_heads import TOKEN_HEADS

NORMALIZATIONS = ("no_norm", "layer_norm")

MOBILE = {"num_hidden_layers": 24, "hidden_size": 512, "intra_bottleneck_size": 128, "intermediate_size": 512}
TEACHER = {
    "num_feedforward_networks": 1,
    "key_query_shared_bottleneck": False,
    "normalization_type": "layer_norm",
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "classifier_activation": True,
}
"""Fields in which IB-BERT differs from MobileBERT, besides sizes (config/uncased_L-24_H-1024_B-512_A-4.json)."""


@dataclasses.dataclass(frozen=True)
class MobileBertConfig(EncoderConfig):
    """Sizes of a MobileBERT or of its teacher; the defaults are MobileBERT as released.

    Arguments override the fields of a named size: `MobileBertConfig.base(vocab_size=8192)`.

    Raises:
        UserError: as for `EncoderConfig`; or sizes of the bottleneck or of the embeddings do not fit the others, the
            normalization is unknown, or attention has two bottlenecks.
    """

    hidden_size: int = 512
    """Hidden size between the layers, D."""
    num_hidden_layers: int = 24
    """Number of layers, L."""
    num_attention_heads: int = 4
    """Number of attention heads, N."""
    intermediate_size: int = 512
    """Inner size of each feed-forward network, F."""
    hidden_act: str = "relu"
    """Activation: relu, gelu_new (tanh form) or gelu (exact)."""
    hidden_dropout_prob: float = 0.0
    """Dropout rate of the embeddings and of each layer's output."""
    classifier_dropout: float | None = None
    """Dropout rate of the input of a downstream task's head; None is the rate of the embeddings and layers."""
    embedding_size: int = 128
    """Embedding size, the width of a row of the word table, E."""
    intra_bottleneck_size: int = 128
    """Hidden size within a layer, I; larger than `hidden_size` where the bottleneck is inverted."""
    use_bottleneck_attention: bool = False
    """True if attention reads the bottleneck of its layer alone, for its queries, keys and values."""
    key_query_shared_bottleneck: bool = True
    """True if queries and keys read a second bottleneck, and values the input of the layer. If neither this nor
    `use_bottleneck_attention` is true, all three read the input of the layer.
    """
    num_feedforward_networks: int = 4
    """Number of feed-forward networks in a layer, M."""
    normalization_type: str = "no_norm"
    """Normalization of the embeddings and layers: no_norm, a scale and a bias alone, or layer_norm."""
    classifier_activation: bool = False
    """True if the pooler is tanh(W x + b); otherwise it is the hidden state of [CLS] itself."""

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("embedding_size", "intra_bottleneck_size", "num_feedforward_networks"), FROM_1)
        check_ranges("model", self, **sizes)
        super().__post_init__()
        check_choice("normalization", self.normalization_type, NORMALIZATIONS)
        if self.embedding_size >= self.hidden_size:
            raise UserError(
                f"Expected --model.embedding_size below the hidden size of {self.hidden_size}, found "
                f"{self.embedding_size}; change one of them."
            )
        if self.use_bottleneck_attention and self.key_query_shared_bottleneck:
            raise UserError(
                "Expected at most one of --model.use_bottleneck_attention and --model.key_query_shared_bottleneck, "
                "found both; set the second to False, because attention would not read the bottleneck that it adds."
            )

    def check_heads(self) -> None:
        """Raise UserError for features that attention cannot divide among its heads."""
        size, heads = self.intra_bottleneck_size, self.num_attention_heads
        if heads < 1 or size % heads:
            raise UserError(
                f"Expected a bottleneck whose size divides by the heads, found {size} and {heads} heads; change "
                "--model.intra_bottleneck_size or --model.num_attention_heads."
            )

    field_names: ClassVar[dict[str, str]] = EncoderConfig.field_names | {"heads": "num_attention_heads"}

    @property
    def heads(self) -> int:
        """Number of attention heads, N."""
        return self.num_attention_heads

    @property
    def queries_bottleneck(self) -> str:
        """Name of the bottleneck that queries and keys read; empty if they read the input of the layer."""
        if self.key_query_shared_bottleneck:
            return "bottleneck_attention"
        return "bottleneck_input" if self.use_bottleneck_attention else ""

    def scores_products(self, length: int) -> int:
        """Return the multiplications of one token's attention scores for `length` keys, in one layer.

        They are the sum for the bottleneck, if there is one, for the query and the key, and for the scores.
        """
        size, inner = self.hidden_size, self.intra_bottleneck_size
        bottleneck, read = (size * inner, inner) if self.queries_bottleneck else (0, size)
        return bottleneck + 2 * read * inner + length * inner

    base = Size(
        "MobileBERT, uncased English: 24,581,888 parameters (paper: 25.3M), 36,597,564 with its pretraining heads.",
        **MOBILE,
    )
    tiny = Size(
        "MobileBERT-TINY: 15,485,696 parameters (paper: 15.1M), 27,501,372 with its pretraining heads.",
        use_bottleneck_attention=True,
        key_query_shared_bottleneck=False,
        num_feedforward_networks=2,
        **MOBILE,
    )
    ib_bert_large = Size(
        "IB-BERT-Large: 294,467,840 parameters (paper: 293M), 306,483,516 with its pretraining heads.",
        **TEACHER,
        **MOBILE | {"intra_bottleneck_size": 1024, "intermediate_size": 4096},
    )
    mini = Size(
        "Two layers of 128 behind a bottleneck of 32; none was published.",
        num_hidden_layers=2,
        hidden_size=128,
        embedding_size=64,
        intra_bottleneck_size=32,
        intermediate_size=128,
    )
    ib_bert_mini = Size(
        "A teacher of `mini`: as many layers, of 128, each wider inside; none was published.",
        num_hidden_layers=2,
        hidden_size=128,
        embedding_size=64,
        intra_bottleneck_size=256,
        intermediate_size=1024,
        **TEACHER,
    )

    @property
    def head_size(self) -> int:
        return self.intra_bottleneck_size // self.num_attention_heads

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        """Return the model FLOPs of the layers in one training step: matrix products, backward = 2 x forward.

        Per token and layer 6 times the sum of 2 D I for the bottleneck and its inverse, D I for a second bottleneck,
        I (2 q + v + I) + 2 T I for attention, and 2 M I F for the feed-forward networks. Queries and keys read q
        features, values v, each of them D or I. With a window of w tokens, T becomes min(T, w + 1).
        """
        wide, narrow = self.hidden_size, self.intra_bottleneck_size
        window = self.attention_window
        length = sequence_length if window is None else min(sequence_length, window + 1)
        keys = narrow if self.use_bottleneck_attention or self.key_query_shared_bottleneck else wide
        values = narrow if self.use_bottleneck_attention else wide
        bottlenecks = 2 * wide * narrow + (wide * narrow if self.key_query_shared_bottleneck else 0)
        attention = narrow * (2 * keys + values + narrow) + 2 * length * narrow
        feed_forward = 2 * self.num_feedforward_networks * narrow * self.intermediate_size
        layer = bottlenecks + attention + feed_forward
        return 6.0 * batch_size * sequence_length * self.num_hidden_layers * layer

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` gathered positions per row. Matrix products only: `layers_flops`, 6 (3 E D) per token
        and 6 (D^2 + D V) per prediction.
        """
        size = self.hidden_size
        words, head = 3 * self.embedding_size * size, size**2 + size * self.vocab_size
        products = sequence_length * words + predictions * head
        return self.layers_flops(batch_size, sequence_length) + 6.0 * batch_size * products


class NoNorm(nn.Module):
    """x * scale + bias, the affine part of a layer normalization (section 3.3); the output has the dtype `dtype`."""

    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = x.shape[-1:]
        scale = self.param("scale", as_scale(nn.initializers.ones_init(), ("embed",)), size)
        bias = self.param("bias", as_norm_bias(nn.initializers.zeros_init(), ("embed",)), size)
        return (x.astype(jnp.float32) * scale + bias).astype(self.dtype)


def norm(config: MobileBertConfig, dtype: jnp.dtype, name: str | None = None) -> nn.Module:
    """Return the normalization of a config."""
    kinds = {"no_norm": NoNorm, "layer_norm": functools.partial(LayerNorm, config.layer_norm_eps)}
    return kinds[config.normalization_type](dtype=dtype, name=name)


def with_neighbors(x: jax.Array, sequences: jax.Array | None) -> jax.Array:
    """Concatenate each vector with its neighbors in the row, [B T E] -> [B T 3 E]: next, own, previous.

    Beyond the ends of a sequence there are zeros.

    sequences: int [B T], the sequence of each token, 0 for padding; None for rows of one sequence without padding.
    """
    after, before = x[:, 1:], x[:, :-1]
    if sequences is not None:
        together = (sequences[:, 1:] == sequences[:, :-1]) & (sequences[:, 1:] > 0)
        after, before = (jnp.where(together[..., None], one, 0) for one in (after, before))
    after, before = jnp.pad(after, ((0, 0), (0, 1), (0, 0))), jnp.pad(before, ((0, 0), (1, 0), (0, 0)))
    return jnp.concatenate([after, x, before], axis=-1)


class MobileBertEmbeddings(nn.Module):
    """norm(W [next word; word; previous word] + b + positions + types)."""

    config: MobileBertConfig
    execution: Execution

    def setup(self) -> None:
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        size = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, config.embedding_size, "vocab", init, dtype)
        self.position_embeddings = Embedding(config.max_position_embeddings, size, None, init, dtype)
        self.token_type_embeddings = Embedding(config.type_vocab_size, size, None, init, dtype)
        self.transformation = Projection((size,), (None, "embed"), init, dtype)
        self.layer_norm = norm(config, dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None,
        positions: jax.Array,
        sequences: jax.Array | None,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Map three int [B T] to [B T D]; token types are 0 by default. sequences: as in `with_neighbors`."""
        token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.transformation(with_neighbors(self.word_embeddings(input_ids), sequences))
        x = x + self.position_embeddings(positions) + self.token_type_embeddings(token_type_ids)
        x = self.dropout(self.layer_norm(x), deterministic)
        return shard_hidden(x)


class MobileBertLayer(nn.Module):
    """Attention and M feed-forward networks behind a bottleneck; each is followed by the residual sum and a norm."""

    config: MobileBertConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask_terms: MaskTerms) -> jax.Array:
        """Map [B T D] to [B T D]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        size, heads, rate = (
            config.intra_bottleneck_size,
            config.num_attention_heads,
            config.attention_probs_dropout_prob,
        )
        attention = MultiHeadAttention(size, heads, rate, init, self.execution, name="attention")
        outer = Projection((config.hidden_size,), ("mlp", "embed"), init, dtype, name="bottleneck_output")

        z = self.bottleneck(x, "bottleneck_input")  # [B T D] -> [B T I]
        queries, values = x, x
        if config.use_bottleneck_attention:
            queries, values = z, z
        if config.key_query_shared_bottleneck:
            queries = self.bottleneck(x, "bottleneck_attention")
        key_values = attention.key_values(queries, values)
        attended = attention.attend(queries, key_values, mask_terms, deterministic=self.deterministic)
        z = norm(config, dtype, "attention_layer_norm")(z + attended)
        for number in range(config.num_feedforward_networks):
            z = self.feed_forward(z, f"feed_forward_{number}")
        y = Dropout(config.hidden_dropout_prob)(outer(z), self.deterministic)  # [B T I] -> [B T D]
        x = norm(config, dtype, "bottleneck_output_layer_norm")(x + y)
        return shard_hidden(x)

    def bottleneck(self, x: jax.Array, name: str) -> jax.Array:
        """Return norm(W x + b), [B T D] -> [B T I]."""
        config, execution, axes = self.config, self.execution, ("embed", "mlp")
        inner = layer_projection(execution, (config.intra_bottleneck_size,), axes, config.initializer, name=name)
        return norm(config, execution.dtype, f"{name}_layer_norm")(inner(x))

    def feed_forward(self, z: jax.Array, name: str) -> jax.Array:
        """Return norm(z + feed_forward(z)), [B T I] -> [B T I]."""
        config, execution = self.config, self.execution
        network = FeedForward(config.intermediate_size, config.hidden_act, config.initializer, execution, name=name)
        return norm(config, execution.dtype, f"{name}_layer_norm")(z + network(z))


class MobileBertEncoder(BertEncoder):
    """L layers whose parameters are stacked [L ...] under `layers`."""

    config: MobileBertConfig
    layer: ClassVar[Callable[..., nn.Module]] = MobileBertLayer


class MobileBertModel(BertModel):
    """Embeddings, encoder and, unless `pooling` is off, the pooler: tanh(W x_[CLS] + b), or x_[CLS] itself."""

    config: MobileBertConfig

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.embeddings = MobileBertEmbeddings(config, execution)
        self.encoder = MobileBertEncoder(config, execution)
        if self.pooling and config.classifier_activation:
            self.pooler = Projection((config.hidden_size,), ("embed", "mlp"), config.initializer, execution.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Take and return the same as `BertModel`; a token also reads the words next to it in its sequence."""
        longest, option = self.config.longest, self.config.option("longest")
        check_token_inputs(longest, option, input_ids, attention_mask, token_type_ids, positions, segment_ids)
        mask_terms = MaskTerms.of_rows(attention_mask, segment_ids).also(*self.config.windows)
        sequences = segment_ids
        if attention_mask is not None:
            sequences = jnp.where(attention_mask > 0, 1 if segment_ids is None else segment_ids, 0)
        rows = self.position_rows(input_ids, positions)
        x = self.embeddings(input_ids, token_type_ids, rows, sequences, deterministic=deterministic)
        with collect(output_attentions) as attentions:
            x, hidden_states = self.encoder(
                x, mask_terms, deterministic=deterministic, output_hidden_states=output_hidden_states
            )
        pooled = self.pool(first_tokens(x, cls_positions)) if self.pooling else None
        return EncoderOutput(x, hidden_states, pooled, attentions=attentions.get(OWN))

    def pool(self, x: jax.Array) -> jax.Array:
        return super().pool(x) if self.config.classifier_activation else x


class MobileBertMaskedLanguageModelHead(MaskedLanguageModelHead):
    """[words; others] . norm(activation(W x + b)) + c: the word table reads E features, another table the rest."""

    config: MobileBertConfig

    def width(self, words: Embedding) -> int:
        return self.config.hidden_size

    def scores(self, x: jax.Array, words: Embedding) -> jax.Array:
        """Map [B P D] to float32 [B P V]."""
        config, size = self.config, words.features
        rest, init = config.hidden_size - size, config.initializer
        others = Embedding(config.vocab_size, rest, "vocab", init, self.execution.dtype, name="other_features")
        return words.attend(x[..., :size]) + others.attend(x[..., size:])


class MobileBertForMaskedLM(BertForMaskedLM):
    """MobileBERT with the masked language model's head alone and no pooler."""

    config: MobileBertConfig
    head: ClassVar[Callable[..., nn.Module]] = MobileBertMaskedLanguageModelHead


class MobileBertForPreTraining(BertForPreTraining):
    """MobileBERT with BERT's two pretraining heads: the masked language model and next sentence prediction."""

    config: MobileBertConfig
    head: ClassVar[Callable[..., nn.Module]] = MobileBertMaskedLanguageModelHead


class MobileBertForNextSentencePrediction(BertForNextSentencePrediction):
    """MobileBERT with the next sentence head alone."""

    config: MobileBertConfig


class MobileBertForSequenceClassification(EncoderForSequenceClassification):
    """MobileBERT with a linear layer on the pooled [CLS]."""

    config: MobileBertConfig


class MobileBertForMultipleChoice(EncoderForMultipleChoice):
    """MobileBERT with a linear layer on the pooled [CLS] of every choice."""

    config: MobileBertConfig


SYSTEM = declare(
    System(
        MobileBertConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: MobileBertForPreTraining,
            Purpose.MASKED_TOKENS: MobileBertForMaskedLM,
            Purpose.ENCODING: functools.partial(MobileBertModel, pooling=False),
            Purpose.EMBEDDING: functools.partial(MobileBertModel, pooling=False),
            Purpose.SEQUENCE_CLASSIFICATION: MobileBertForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: MobileBertForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="mobilebert",
        template=encoder_template,
        parts=encoder_parts,
    )
)
