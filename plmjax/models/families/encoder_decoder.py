"""Base classes of encoder-decoders: the modules, and the config of the Transformer, BART and Lite Transformer.

`EncoderDecoderModel` reads source and target at once, or a source once and then its target token by token. The layers
are in the model files.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import ParameterGroup, Purpose
from plmjax.errors import FRACTION, FROM_1, UserError, check_ranges
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.attention.multi_head import KeyValues
from plmjax.layers.attention.recording import CROSS, OWN, collect
from plmjax.layers.encoder_decoder import EncoderDecoderOutput, SourceKeyValues, check_segments
from plmjax.layers.feed_forward import check_activation
from plmjax.layers.rows import DecoderRows, EncoderRows, read_rows, read_source


def both_sides(**sizes: int) -> dict[str, int]:
    """Return the config fields that give both sides the same `layers`, `heads` and `inner` feed-forward size."""
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

    field_names: ClassVar[dict[str, str]] = {
        "width": "d_model",
        "depth": "decoder_layers",
        "longest": "max_position_embeddings",
        "end_token": "eos_token_id",
    }

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "max_position_embeddings", "d_model", "encoder_layers", "decoder_layers")
        heads = ("encoder_attention_heads", "decoder_attention_heads")
        inner = ("encoder_ffn_dim", "decoder_ffn_dim")
        check_ranges("model", self, **dict.fromkeys((*sizes, *heads, *inner), FROM_1))
        check_ranges("model", self, dropout=FRACTION, attention_dropout=FRACTION, activation_dropout=FRACTION)
        for name, count in zip(heads, (self.encoder_attention_heads, self.decoder_attention_heads), strict=True):
            if self.d_model % count:
                raise UserError(
                    f"Expected features that divide by the heads, found {self.d_model} and {count} heads; change "
                    f"--model.d_model or --model.{name}."
                )
        check_activation(self.activation_function)

    @property
    def token_initializer(self) -> Initializer:
        """Initializer of the word table."""
        return self.initializer

    @property
    def heads_initializer(self) -> Initializer:
        """Initializer of the kernels [D N H] of queries, keys and values."""
        return self.initializer

    @property
    def output_projection_initializer(self) -> Initializer:
        """Initializer of the kernel [N H D] after attention."""
        return self.initializer

    def with_depth(self, layers: int) -> Self:
        return dataclasses.replace(self, encoder_layers=layers, decoder_layers=layers)

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of embeddings, sublayers and attention probabilities."""
        return dataclasses.replace(self, dropout=rate, attention_dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        They are 6 `layers_products` per row, with `predictions` as the target length, and 6 D V per prediction.
        """
        head = predictions * self.d_model * self.vocab_size
        return 6.0 * batch_size * (self.layers_products(sequence_length, predictions) + head)

    def layers_products(self, source: int, target: int) -> int:
        """Return the multiplications of all layers for a row with `source` and `target` tokens."""
        size = self.d_model
        encoder = LayerSize(self.encoder_layers, size, size, 2 * size * self.encoder_ffn_dim)
        decoder = LayerSize(self.decoder_layers, size, size, 2 * size * self.decoder_ffn_dim)
        return layers_products(encoder, decoder, source, target)


class LayerSize(NamedTuple):
    """Sizes of the layers of one side.

    depth: number of layers.
    width: hidden size, D.
    inner: heads times head size, I.
    feed_forward: number of weights of a feed-forward network, 2 D F for two matrices.
    """

    depth: int
    width: int
    inner: int
    feed_forward: int


def layers_products(encoder: LayerSize, decoder: LayerSize, source: int, target: int) -> int:
    """Return the multiplications of the matrix products of all layers for a row with `source` and `target` tokens.

    A layer of the encoder takes 4 D I + 2 D F + 2 S I for each of S tokens. A layer of the decoder takes 6 D I + 2 D F
    + 2 (T + S) I for each of T tokens, and 2 D I for the keys and values of each source token. Without a target there
    is no decoder. Attention counts all pairs of tokens, although some are hidden.
    """
    depth, width, inner, feed_forward = encoder
    products = depth * source * (4 * width * inner + feed_forward + 2 * source * inner)
    if not target:
        return products
    depth, width, inner, feed_forward = decoder
    products += depth * target * (6 * width * inner + feed_forward + 2 * (target + source) * inner)
    return products + depth * source * 2 * width * inner


class EncoderDecoderModel(nn.Module):
    """An encoder and a decoder without a head.

    A system defines `_encode`, `_key_values` and `_decode`.
    """

    config: ModelConfig
    execution: Execution = Execution()

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
        output_attentions: bool = False,
        **source_inputs: Any,
    ) -> EncoderDecoderOutput:
        """Read sources and targets. A target token sees only the target tokens up to itself.

        Args:
            input_ids: int [B S], the source.
            attention_mask: [B S], 1 for tokens that may be attended to; all by default.
            decoder_input_ids: int [B T], the target, each token one position before its prediction.
            decoder_attention_mask: [B T], as `attention_mask`.
            segment_ids: int [B S], the packed pair of each token, 0 for padding; given together with
                `decoder_segment_ids`.
            positions: int [B S], from 0 in every sequence; 0, 1, ... by default.
            decoder_segment_ids: int [B T], as `segment_ids`.
            decoder_positions: int [B T], as `positions`.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`).
            source_inputs: further inputs of the source that a system has (`_source`).

        Raises:
            UserError: a row is longer than the model's positions.
            ValueError: the inputs of a side differ in shape, or only one side has segments.
        """
        check_segments(segment_ids, decoder_segment_ids)
        flags = {"deterministic": deterministic, "output_hidden_states": output_hidden_states}
        source = self._source(input_ids, attention_mask, positions=positions, segment_ids=segment_ids, **source_inputs)
        with collect(output_attentions) as source_attentions:
            encoded, encoder_states = self._encode(input_ids, source, **flags)
        rows = read_rows(
            self.config,
            decoder_input_ids,
            decoder_attention_mask,
            positions=decoder_positions,
            segment_ids=decoder_segment_ids,
            prefix_lengths=None,
            cache=None,
        )
        seen = MaskTerms.of_rows(attention_mask, segment_ids, decoder_segment_ids)
        with collect(output_attentions) as target_attentions:
            output = self._decode(decoder_input_ids, rows, encoded, seen, **flags)
        return output.replace(
            encoder_last_hidden_state=encoded,
            encoder_hidden_states=encoder_states,
            encoder_attentions=source_attentions.get(OWN),
            decoder_attentions=target_attentions.get(OWN),
            cross_attentions=target_attentions.get(CROSS),
        )

    def encode(
        self, input_ids: jax.Array, attention_mask: jax.Array | None = None, **source_inputs: Any
    ) -> SourceKeyValues:
        """Encode sources, as in `__call__`, once for targets that are generated token by token."""
        source = self._source(input_ids, attention_mask, **source_inputs)
        encoded, _ = self._encode(input_ids, source, deterministic=True, output_hidden_states=False)
        mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        return SourceKeyValues(self._key_values(encoded), mask.astype(jnp.int32))

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
        rows = read_rows(
            self.config,
            decoder_input_ids,
            decoder_attention_mask,
            positions=None,
            segment_ids=None,
            prefix_lengths=None,
            cache=cache,
        )
        seen = source.key_values, source.mask_terms()
        return self._decode(decoder_input_ids, rows, *seen, deterministic=True, output_hidden_states=False)

    def _source(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
    ) -> EncoderRows:
        """Return the inputs of the encoder's layers; a system with further inputs overrides this."""
        return read_source(self.config, input_ids, attention_mask, positions=positions, segment_ids=segment_ids)

    def _encode(
        self,
        input_ids: jax.Array,
        rows: EncoderRows,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the encoder's last hidden state [B S D] and, if requested, all hidden states [L+1 B S D]."""
        raise NotImplementedError(f"{type(self).__name__} must encode a source.")

    def _key_values(self, encoded: jax.Array) -> KeyValues:
        """Project the encoder's output [B S D] to the keys and values of every layer, [L B S N H] each."""
        raise NotImplementedError(f"{type(self).__name__} must project the encoder's output.")

    def _decode(
        self,
        input_ids: jax.Array,
        rows: DecoderRows,
        source: jax.Array | KeyValues,
        source_mask: MaskTerms,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> EncoderDecoderOutput:
        """Decode with a source: the encoder's output [B S D], or every layer's keys and values.

        With the encoder's output, each layer projects its keys and values when it needs them. Then the keys and values
        of only one layer exist at a time.
        """
        raise NotImplementedError(f"{type(self).__name__} must decode a target.")


class EncoderDecoderForConditionalGeneration(nn.Module):
    """Encoder and decoder, under the name of their system, and the scores of the next token."""

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.model = self.config.module(Purpose.ENCODING, self.execution)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        decoder_input_ids: jax.Array,
        **inputs: Any,
    ) -> EncoderDecoderOutput:
        """Take and return the same as `EncoderDecoderModel`, with `scores`."""
        return self._add_scores(self.model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, **inputs))

    def encode(
        self, input_ids: jax.Array, attention_mask: jax.Array | None = None, **source_inputs: Any
    ) -> SourceKeyValues:
        """Take and return the same as `EncoderDecoderModel.encode`."""
        return self.model.encode(input_ids, attention_mask, **source_inputs)

    def decode(
        self,
        decoder_input_ids: jax.Array,
        source: SourceKeyValues,
        decoder_attention_mask: jax.Array | None = None,
        cache: KeyValueCache | None = None,
    ) -> EncoderDecoderOutput:
        """Take and return the same as `EncoderDecoderModel.decode`, with `scores`."""
        return self._add_scores(self.model.decode(decoder_input_ids, source, decoder_attention_mask, cache))

    def _add_scores(self, output: EncoderDecoderOutput) -> EncoderDecoderOutput:
        """Add the scores to the output of the model. By default the model has computed them."""
        return output


def encoder_decoder_cache(
    config: EncoderDecoderConfig, batch: int, capacity: int, execution: Execution
) -> KeyValueCache:
    """Return an empty cache of the decoder's keys and values."""
    heads, size = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    return KeyValueCache.empty(config.decoder_layers, batch, capacity, heads=heads, size=size, dtype=execution.dtype)


def encoder_decoder_parts(config: EncoderDecoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the word table, each layer of the encoder and each of the decoder."""
    name, sides = config.system.name, {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    layers = (
        ParameterGroup((f"{name}/{side}_layers",), layer) for side, depth in sides.items() for layer in range(depth)
    )
    return ParameterGroup((f"{name}/words",)), *layers
