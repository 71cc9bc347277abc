"""The shared parts of encoder-decoders: the outputs of their modules, and the values kept from the encoded source.

A module of such a model has three methods. Training calls the module itself. Generation reads the source once and then
calls `decode` for each further token:

    module(input_ids, attention_mask, decoder_input_ids, ...) -> EncoderDecoderOutput
    module.encode(input_ids, attention_mask) -> SourceKeyValues
    module.decode(decoder_input_ids, source, decoder_attention_mask, cache) -> EncoderDecoderOutput

A decoder of another kind, such as an LSTM, has its own classes for the source, with the field `attention_mask`, and for
the output, with the fields `scores` and `cache`.

The layers of a decoder with attention are stacked. A layer has a method `key_values`, which projects the encoder's
output [B S D] to its own keys and values. `project_source` and `decode_layers` run all layers.
"""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attentions import EncoderDecoderAttentions
from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.scores import TokenScores
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.attention.multi_head import KeyValues
from plmjax.layers.stack import stack


@flax.struct.dataclass
class EncoderDecoderOutput(EncoderDecoderAttentions):
    """The output of the modules of an encoder-decoder; fields that a module does not compute are None.

    last_hidden_state: [B T D], of the decoder.
    hidden_states: [L+1 B T D], the decoder's embeddings first; only if requested.
    encoder_last_hidden_state: [B S D].
    encoder_hidden_states: [L+1 B S D], the encoder's embeddings first; only if requested.
    scores: scores of the next token at every position of the decoder; None for a module without a head.
    cache: the given cache, with the tokens of this call.
    label_logits: float32 [B labels] (or [B K labels] of packed texts), of a head for texts.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    encoder_last_hidden_state: jax.Array | None = None
    encoder_hidden_states: jax.Array | None = None
    scores: TokenScores | None = None
    cache: Cache | None = None
    label_logits: jax.Array | None = None

    @property
    def logits(self) -> jax.Array:
        """The label logits, if there is a head for labels; otherwise the logits of the vocabulary, float32 [B T V]."""
        return self.scores.logits() if self.label_logits is None else self.label_logits


@flax.struct.dataclass
class SourceKeyValues:
    """The encoded source of a decoder that generates text, computed once for all tokens of the target.

    key_values: [L B S N H], each decoder layer's keys and values of the encoder's output.
    attention_mask: int32 [B S], 1 for tokens that may be attended to.
    """

    key_values: KeyValues
    attention_mask: jax.Array

    def mask_terms(self) -> MaskTerms:
        """Return the mask terms of the source: every token of the decoder sees the same keys."""
        return MaskTerms.of_rows(self.attention_mask, None)


def project_source(layers: nn.Module, depth: int, execution: Execution, encoded: jax.Array) -> KeyValues:
    """Project the encoder's output [B S D] to the keys and values of each of `depth` layers, [L B S N H]."""

    def body(layer: nn.Module, encoded: jax.Array, _: None) -> tuple[jax.Array, KeyValues]:
        return encoded, layer.key_values(encoded)

    return stack(body, layers, depth, execution=execution, x=encoded)[1]


def decode_layers(
    apply: Callable[..., tuple[jax.Array, KeyValueCache | None]],
    layers: nn.Module,
    numbers: jax.Array,
    *,
    execution: Execution,
    x: jax.Array,
    source: jax.Array | KeyValues,
    cache: KeyValueCache | None,
    output_hidden_states: bool,
) -> tuple[jax.Array, KeyValueCache | None, jax.Array | None]:
    """Run the layers of a decoder, [B T D] -> [B T D].

    Args:
        apply: function (layer, x, source, cache=, number=) -> (x, cache). `source` has the layer's keys and values of
            the source, and `number` is the index of the layer in the cache.
        layers: the bound module of all layers, as for `stack`.
        numbers: int [L], the indices of the layers in the cache.
        source: the encoder's output [B S D], or the result of `project_source`. With the encoder's output, each layer
            projects its keys and values when it needs them, so that those of only one layer exist at a time.

    Returns:
        x, the cache and, if requested, the hidden states [L+1 B T D], the given x first.
    """
    first, projected = x, isinstance(source, KeyValues)

    def body(layer: nn.Module, carried: tuple, lane: tuple) -> tuple[tuple, jax.Array | None]:
        (x, cache), (number, key_values) = carried, lane
        key_values = key_values if projected else layer.key_values(source)
        carried = apply(layer, x, key_values, cache=cache, number=number)
        return carried, carried[0] if output_hidden_states else None

    lanes = numbers, source if projected else None
    (x, cache), states = stack(body, layers, len(numbers), execution=execution, x=(x, cache), inputs=lanes)
    return x, cache, jnp.concatenate([first[None], states]) if output_hidden_states else None


def group_by_source(rows: jax.Array, source: KeyValues) -> jax.Array:
    """Merge the rows that read the same source: [R T D] -> [B, K T, D].

    The K texts that are generated from a source are adjacent. As queries of one row they share the keys and values of
    the source, which are then read once and kept once.

    Args:
        rows: [R T D], R = B K; K is 1 if every row has its own source.
        source: the keys and values of the source, [B S N H].
    """
    return rows.reshape(len(source.keys), -1, rows.shape[-1])


def check_segments(source: jax.Array | None, target: jax.Array | None) -> None:
    """Raise ValueError if only one of source and target has segments."""
    if (source is None) != (target is None):
        raise ValueError("Expected segments of both sides or of neither, found those of one side alone.")
