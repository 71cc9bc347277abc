"""Transformer: attention is all you need (Vaswani et al. 2017, arXiv 1706.03762; tensorflow/tensor2tensor).

An encoder reads a text. A decoder generates another text token by token and attends to both:

    source:  x_s = sqrt(D) words[source_s] + sinusoids[s]
             L times:  x = norm(x + attention(x, x));  x = norm(x + feed_forward(x))
    target:  y_t = sqrt(D) words[target_t] + sinusoids[t]
             L times:  y = norm(y + attention(y, y up to each));  y = norm(y + attention(y, x));
                       y = norm(y + feed_forward(y))
    next token:  softmax(words . y_t)

One table holds the words of both languages and is also the output layer (section 3.4). In training, dropout is applied
to the embeddings before the first layer and to the output of each sublayer (section 5.4).

Deviation: the sines of a position are the first half of its vector and the cosines the second half, as in the released
code (tensor2tensor layers/common_attention.py) and in Marian. In the paper they alternate, which is another order of
features.
Deviation: norms follow the sums, as in the paper; the released code later put them before each sublayer.
Deviation: the projections of attention have biases, as in fairseq and in Marian; those of the released code have none.
Deviation: the paper does not give the initial values; here they are those of the released code: kernels as in Glorot &
Bengio 2010, words with a standard deviation of 1 / sqrt(D).
Deviation: the row of the padding token is trained if targets begin with it, as in Marian (layers/words/embeddings.py).
Deviation: a row may hold several packed pairs (`segment_ids`, `decoder_segment_ids`), and each attends only to itself.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.contracts.visibility import Visibility
from plmjax.errors import FROM_1, SHARE, UserError, check_choice, check_ranges
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.decoder_rows import DecoderRows, read_rows
from plmjax.layers.dropout import Dropout
from plmjax.layers.encoder_decoder import EncoderDecoderOutput, SourceKeyValues, by_source, check_segments
from plmjax.layers.feed_forward import ACTIVATIONS, FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.sinusoids import sinusoids
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding, check_ids
from plmjax.layers.words.vocabulary_scores import VocabularyScores

LAYER_NORM_EPSILON = 1e-5
"""Added to the variance in layer normalisation, as in fairseq and in transformers."""
ROW = ("batch", "length", "embed")


def both_sides(**sizes: int) -> dict[str, int]:
    """Return the fields of the encoder and of the decoder for `layers`, `heads` and `inner` features."""
    names = {"layers": "layers", "heads": "attention_heads", "inner": "ffn_dim"}
    return {f"{side}_{names[name]}": size for name, size in sizes.items() for side in ("encoder", "decoder")}


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(ModelConfig):
    """Sizes of an encoder and a decoder, named as in transformers' config.json.

    Raises:
        UserError: sizes that do not fit each other, or an unknown activation.
    """

    vocab_size: int
    """Vocabulary size, which both sides share."""
    max_position_embeddings: int = 1024
    """Maximum length of a row on either side."""
    d_model: int = 512
    """Hidden size, D."""
    encoder_layers: int = 6
    """Number of layers of the encoder."""
    decoder_layers: int = 6
    """Number of layers of the decoder, L."""
    encoder_attention_heads: int = 8
    """Number of attention heads of the encoder."""
    decoder_attention_heads: int = 8
    """Number of attention heads of the decoder, N."""
    encoder_ffn_dim: int = 2048
    """Inner size of the encoder's feed-forward network."""
    decoder_ffn_dim: int = 2048
    """Inner size of the decoder's feed-forward network, F."""
    activation_function: str = "relu"
    """Activation: relu, gelu (exact), gelu_new (tanh form) or swish."""
    dropout: float = 0.1
    """Dropout rate of the first layer's input and of each sublayer's output."""
    attention_dropout: float = 0.0
    """Dropout rate of attention probabilities."""
    activation_dropout: float = 0.0
    """Dropout rate of the features inside the feed-forward network."""
    pad_token_id: int = 0
    """Padding token id; the model itself does not need it, transformers begins a target with it by default."""
    eos_token_id: int = 3
    """Token id at the end of a text, as in transformers."""
    decoder_start_token_id: int = 3
    """First token id of a target, as in transformers."""

    output_bias: ClassVar[bool] = False
    field_names: ClassVar[dict[str, str]] = {
        "width": "d_model",
        "depth": "decoder_layers",
        "longest": "max_position_embeddings",
        "end_token": "eos_token_id",
    }

    def __post_init__(self) -> None:
        """Check the settings that no later shape error would explain."""
        sizes = ("vocab_size", "max_position_embeddings", "d_model", "encoder_layers", "decoder_layers")
        heads = ("encoder_attention_heads", "decoder_attention_heads")
        inner = ("encoder_ffn_dim", "decoder_ffn_dim")
        check_ranges("model", self, **dict.fromkeys((*sizes, *heads, *inner), FROM_1))
        check_ranges("model", self, dropout=SHARE, attention_dropout=SHARE, activation_dropout=SHARE)
        for name, count in zip(heads, (self.encoder_attention_heads, self.decoder_attention_heads), strict=True):
            if self.d_model % count:
                raise UserError(
                    f"Expected features that divide by the heads, found {self.d_model} and {count} heads; change "
                    f"--model.d_model or --model.{name}."
                )
        check_choice("activation", self.activation_function, ACTIVATIONS)

    @property
    def token_initializer(self) -> Initializer:
        """Initializer of the word table."""
        return self.initializer

    @property
    def heads_initializer(self) -> Initializer:
        """Initializer of the kernels [D N H] of queries, keys and values."""
        return self.initializer

    @property
    def joining_initializer(self) -> Initializer:
        """Initializer of the kernel [N H D] after attention."""
        return self.initializer

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of embeddings, sublayers and attention probabilities."""
        return dataclasses.replace(self, dropout=rate, attention_dropout=rate)

    def empty_cache(self, batch: int, room: int, execution: Execution = Execution()) -> KeyValueCache:
        """Return a cache of the decoder for rows of up to `room` tokens."""
        sizes = (self.decoder_attention_heads, self.d_model // self.decoder_attention_heads)
        return KeyValueCache.empty(self.decoder_layers, batch, room, *sizes, execution.dtype)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        They are those of both sides, and 6 D V per prediction.
        """
        head = predictions * self.d_model * self.vocab_size
        return 6.0 * batch_size * (self.layers_products(sequence_length, predictions) + head)

    def layers_products(self, source: int, target: int) -> int:
        """Return the multiplications of the matrix products of all layers for a row with `source` and `target` tokens.

        A layer of the encoder takes 4 D^2 + 2 D F + 2 S D for each of S tokens. A layer of the decoder takes 6 D^2 + 2
        D F + 2 (T + S) D for each of T tokens, and 2 D^2 for the keys and values of each source token. Without a target
        there is no decoder. Attention counts all pairs of tokens, although some are hidden.
        """
        size = self.d_model
        encoder = source * (4 * size**2 + 2 * size * self.encoder_ffn_dim + 2 * source * size)
        decoder = target * (6 * size**2 + 2 * size * self.decoder_ffn_dim + 2 * (target + source) * size)
        decoder += 2 * source * size**2 if target else 0
        return self.encoder_layers * encoder + self.decoder_layers * decoder


@dataclasses.dataclass(frozen=True)
class TransformerConfig(EncoderDecoderConfig):
    """Sizes of a Transformer; the defaults are the base model.

    Arguments override the fields of a named size: `TransformerConfig.base(vocab_size=8192)`.
    """

    vocab_size: int = 37000
    """Vocabulary size, which both sides share."""
    scale_embedding: bool = True
    """True to multiply words by sqrt(D) before positions are added."""
    output_bias: bool = False
    """True to add a bias, `final_logits_bias`, to the scores of the next token, as in Marian."""

    base = Size("63,082,496 parameters (table 3 of the paper).")
    big = Size(
        "214,245,376 parameters (ibid.), with the dropout for English to German.",
        d_model=1024,
        dropout=0.3,
        **both_sides(heads=16, inner=4096),
    )
    tiny = Size("Two layers of 128 on each side.", d_model=128, **both_sides(layers=2, heads=2, inner=512))

    @property
    def initializer(self) -> Initializer:
        """Initializer of kernels [inputs outputs]."""
        return nn.initializers.xavier_uniform()

    @property
    def token_initializer(self) -> Initializer:
        """Initializer of the word table."""
        return nn.initializers.normal(self.d_model**-0.5)

    @property
    def heads_initializer(self) -> Initializer:
        """Initializer of the kernels [D N H] of queries, keys and values."""
        return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2))

    @property
    def joining_initializer(self) -> Initializer:
        """Initializer of the kernel [N H D] after attention."""
        return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=(0, 1), out_axis=2)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; each is followed by dropout, the residual sum and a norm."""

    config: EncoderDecoderConfig
    execution: Execution

    def setup(self) -> None:
        """Create two sublayers and their norms."""
        config, execution = self.config, self.execution
        self.attention = _attention(config, config.encoder_attention_heads, execution)
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.feed_forward = _feed_forward(config, config.encoder_ffn_dim, execution)
        self.feed_forward_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.dropout = Dropout(config.dropout)

    def __call__(self, x: jax.Array, visibility: Visibility, *, deterministic: bool) -> jax.Array:
        """Map [B S D] to [B S D]."""
        attention = functools.partial(self.attention, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        x = self.attention_layer_norm(x + dropout(attention(x, x, visibility)))
        x = nn.with_logical_constraint(x, ROW)
        x = self.feed_forward_layer_norm(x + dropout(feed_forward(x)))
        return nn.with_logical_constraint(x, ROW)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, then feed-forward.

    Each is followed by dropout, the residual sum and a norm, as in the encoder.
    """

    config: EncoderDecoderConfig
    execution: Execution

    def setup(self) -> None:
        """Create three sublayers and their norms."""
        config, execution, heads = self.config, self.execution, self.config.decoder_attention_heads
        self.attention = _attention(config, heads, execution)
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.cross_attention = _attention(config, heads, execution)
        self.cross_attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.feed_forward = _feed_forward(config, config.decoder_ffn_dim, execution)
        self.feed_forward_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.dropout = Dropout(config.dropout)

    def key_values(self, encoded: jax.Array) -> KeyValues:
        """Project the encoder's output to keys and values: [B S D] -> [B S N H] each."""
        return self.cross_attention.key_values(encoded)

    def __call__(
        self,
        y: jax.Array,
        visibility: Visibility,
        source: KeyValues,
        of_source: Visibility,
        cache: KeyValueCache | None,
        layer: jax.Array,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Map [B T D] to [B T D], and to the cache with the layer's keys and values of these tokens."""
        attend = functools.partial(self.attention.attend, deterministic=deterministic)
        attend_to_source = functools.partial(self.cross_attention.attend, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        key_values, cache = with_past(self.attention.key_values(y), cache, layer)
        y = self.attention_layer_norm(y + dropout(attend(y, key_values, visibility)))
        y = nn.with_logical_constraint(y, ROW)
        context = attend_to_source(by_source(y, source), source, of_source).reshape(y.shape)
        y = self.cross_attention_layer_norm(y + dropout(context))
        y = nn.with_logical_constraint(y, ROW)
        y = self.feed_forward_layer_norm(y + dropout(feed_forward(y)))
        return nn.with_logical_constraint(y, ROW), cache


def _attention(config: EncoderDecoderConfig, heads: int, execution: Execution) -> MultiHeadAttention:
    init, joining = config.heads_initializer, config.joining_initializer
    return MultiHeadAttention(config.d_model, heads, config.attention_dropout, init, execution, output_init=joining)


def _feed_forward(config: EncoderDecoderConfig, inner_size: int, execution: Execution) -> FeedForward:
    activation, dropout = config.activation_function, config.activation_dropout
    return FeedForward(inner_size, activation, config.initializer, execution.dtype, dropout=dropout)


def encoded(
    layers: EncoderLayer,
    depth: int,
    execution: Execution,
    x: jax.Array,
    visibility: Visibility,
    *,
    deterministic: bool,
    output_hidden_states: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Run an encoder's layers: [B S D] -> [B S D].

    If requested, return also all hidden states [depth+1 B S D].
    """
    x = nn.with_logical_constraint(x, ROW)

    def body(layer: EncoderLayer, x: jax.Array, inputs: None) -> tuple[jax.Array, jax.Array | None]:
        x = layer(x, visibility, deterministic=deterministic)
        return x, x if output_hidden_states else None

    last, states = stack(body, layers, depth, execution, x)
    return last, jnp.concatenate([x[None], states]) if output_hidden_states else None


class TransformerModel(nn.Module):
    """The words of both sides, and the layers of each side, whose parameters are stacked [L ...]."""

    config: EncoderDecoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create a table, two stacks of layers, and dropout."""
        config, execution = self.config, self.execution
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", config.token_initializer, execution.dtype)
        self.encoder_layers = EncoderLayer(config, execution)
        self.decoder_layers = DecoderLayer(config, execution)
        self.dropout = Dropout(config.dropout)

    def source_vectors(self, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Compute the input of the encoder's first layer, before dropout: int [B S] twice -> [B S D]."""
        size, rows = self.config.d_model, self.config.max_position_embeddings
        check_ids(positions, rows, f"the {rows} positions of the model")
        table = jnp.asarray(sinusoids(np.arange(rows), size), self.execution.dtype)
        scale = math.sqrt(size) if self.config.scale_embedding else 1.0
        return scale * self.words(input_ids) + jnp.take(table, positions, axis=0, mode="clip")

    def target_vectors(self, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Compute the input of the decoder's first layer, before dropout: int [B T] twice -> [B T D]."""
        return self.source_vectors(input_ids, positions)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        decoder_input_ids: jax.Array,
        decoder_attention_mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        decoder_segment_ids: jax.Array | None = None,
        decoder_positions: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> EncoderDecoderOutput:
        """Read sources and targets. A target token sees only the target tokens up to itself.

        Args:
            input_ids: int [B S], the source.
            attention_mask: [B S], 1 for tokens that may be attended to; all by default.
            decoder_input_ids: int [B T], the target, each token one position before its prediction.
            decoder_attention_mask: [B T], as `attention_mask`.
            segment_ids, decoder_segment_ids: int [B S] and [B T], given together: the packed pair of each token, 0 for
                padding.
            positions, decoder_positions: int [B S] and [B T], from 0 in every sequence; 0, 1, ... by default.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.

        Raises:
            UserError: a row is longer than the model's positions.
            ValueError: an input's shape does not fit the others', or only one side has segments.
        """
        check_segments(segment_ids, decoder_segment_ids)
        how = {"deterministic": deterministic, "output_hidden_states": output_hidden_states}
        read, encoder_states = self._encoded(input_ids, attention_mask, positions, segment_ids, **how)
        row = (decoder_input_ids, decoder_attention_mask, decoder_positions, decoder_segment_ids)
        rows = read_rows(self.config, *row, prefix_lengths=None, cache=None)
        of_source = Visibility.of_rows(attention_mask, segment_ids, decoder_segment_ids)
        output = self._decoded(decoder_input_ids, rows, read, of_source, **how)
        return output.replace(encoder_last_hidden_state=read, encoder_hidden_states=encoder_states)

    def encode(self, input_ids: jax.Array, attention_mask: jax.Array | None = None) -> SourceKeyValues:
        """Encode sources, as in `__call__`, for targets that are generated token by token."""
        read, _ = self._encoded(input_ids, attention_mask, None, None, deterministic=True, output_hidden_states=False)

        def body(layer: DecoderLayer, read: jax.Array, inputs: None) -> tuple[jax.Array, KeyValues]:
            return read, layer.key_values(read)

        _, key_values = stack(body, self.decoder_layers, self.config.decoder_layers, self.execution, read)
        return SourceKeyValues(key_values, jnp.ones_like(input_ids) if attention_mask is None else attention_mask)

    def decode(
        self,
        decoder_input_ids: jax.Array,
        source: SourceKeyValues,
        decoder_attention_mask: jax.Array | None = None,
        cache: KeyValueCache | None = None,
    ) -> EncoderDecoderOutput:
        """Decode targets of sources that were encoded before.

        Args:
            decoder_input_ids: int [B T].
            source: the result of `encode`.
            decoder_attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            cache: the tokens before these, with capacity for T more.

        Raises as `__call__`.
        """
        rows = read_rows(self.config, decoder_input_ids, decoder_attention_mask, None, None, None, cache)
        seen = source.key_values, source.visibility()
        return self._decoded(decoder_input_ids, rows, *seen, deterministic=True, output_hidden_states=False)

    def _encoded(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None,
        positions: jax.Array | None,
        segment_ids: jax.Array | None,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the last hidden state of the encoder [B S D], and all of them if requested."""
        positions, visibility = self._source_row(input_ids, attention_mask, positions, segment_ids)
        x = self.dropout(self.source_vectors(input_ids, positions), deterministic)
        how = {"deterministic": deterministic, "output_hidden_states": output_hidden_states}
        return encoded(self.encoder_layers, self.config.encoder_layers, self.execution, x, visibility, **how)

    def _source_row(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None,
        positions: jax.Array | None,
        segment_ids: jax.Array | None,
    ) -> tuple[jax.Array, Visibility]:
        """Return the positions of the source's tokens, int [B S], and the visibility of each token."""
        config = self.config
        check_token_inputs(config.longest, config.option("longest"), input_ids, attention_mask, positions, segment_ids)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        return positions, Visibility.of_rows(attention_mask, segment_ids)

    def _decoded(
        self,
        input_ids: jax.Array,
        rows: DecoderRows,
        source: jax.Array | KeyValues,
        of_source: Visibility,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> EncoderDecoderOutput:
        """Decode with a source: the encoder's output [B S D], or every layer's keys and values.

        With the encoder's output each layer computes its own keys and values when it needs them. So they are not kept
        for the other layers.
        """
        depth, made = self.config.decoder_layers, source if isinstance(source, KeyValues) else None
        y = self.dropout(self.target_vectors(input_ids, rows.positions), deterministic)
        y = nn.with_logical_constraint(y, ROW)

        def body(layer: DecoderLayer, carried: tuple[jax.Array, Any], lane: tuple) -> tuple[Any, Any]:
            (y, cache), (number, key_values) = carried, lane
            key_values = layer.key_values(source) if key_values is None else key_values
            carried = layer(y, rows.visibility, key_values, of_source, cache, number, deterministic=deterministic)
            return carried, carried[0] if output_hidden_states else None

        lanes = jnp.arange(depth), made
        (last, cache), states = stack(body, self.decoder_layers, depth, self.execution, (y, rows.cache), lanes)
        return EncoderDecoderOutput(
            last_hidden_state=last,
            hidden_states=jnp.concatenate([y[None], states]) if output_hidden_states else None,
            scores=VocabularyScores(last, self.words.embedding),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
        )


class TransformerForConditionalGeneration(nn.Module):
    """Encoder and decoder, with the name of their system, and the scores of the next token.

    The word table is the output layer.
    """

    config: TransformerConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the model, and the bias of the scores if there is one."""
        self.model = self.config.module(Purpose.ENCODING, self.execution)
        if self.config.output_bias:
            init = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",))
            self.final_logits_bias = self.param("final_logits_bias", init, (self.config.vocab_size,))

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        decoder_input_ids: jax.Array,
        **inputs: Any,
    ) -> EncoderDecoderOutput:
        """Take and return the same as `TransformerModel`."""
        return self._scored(self.model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, **inputs))

    def encode(self, input_ids: jax.Array, attention_mask: jax.Array | None = None) -> SourceKeyValues:
        """Take and return the same as `TransformerModel.encode`."""
        return self.model.encode(input_ids, attention_mask)

    def decode(
        self,
        decoder_input_ids: jax.Array,
        source: SourceKeyValues,
        decoder_attention_mask: jax.Array | None = None,
        cache: KeyValueCache | None = None,
    ) -> EncoderDecoderOutput:
        """Take and return the same as `TransformerModel.decode`."""
        return self._scored(self.model.decode(decoder_input_ids, source, decoder_attention_mask, cache))

    def _scored(self, output: EncoderDecoderOutput) -> EncoderDecoderOutput:
        if not self.config.output_bias:
            return output
        table = self.model.words.embedding
        return output.replace(scores=VocabularyScores(output.last_hidden_state, table, self.final_logits_bias))


def encoder_decoder_parts(config: EncoderDecoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the word table, each layer of the encoder and each of the decoder."""
    name, sides = config.system.name, {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    layers = (
        ParameterGroup((f"{name}/{side}_layers",), layer) for side, depth in sides.items() for layer in range(depth)
    )
    return ParameterGroup((f"{name}/words",)), *layers


SYSTEM = declare(
    System(
        TransformerConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: TransformerForConditionalGeneration,
            Purpose.WRITING: TransformerForConditionalGeneration,
            Purpose.TEXT_TO_TEXT: TransformerForConditionalGeneration,
            Purpose.ENCODING: TransformerModel,
        },
        name="transformer",
        template=lambda config: Template("A end", "A end B end", "last"),
        parts=encoder_decoder_parts,
        token_table="transformer/words/embedding",
    )
)
