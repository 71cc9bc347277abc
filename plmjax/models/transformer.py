"""Transformer: attention is all you need (Vaswani et al. 2017, arXiv 1706.03762; tensorflow/tensor2tensor).

An encoder reads a text. A decoder generates another text token by token, and attends to both texts:

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
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.dropout import Dropout
from plmjax.layers.encoder_decoder import EncoderDecoderOutput, decode_layers, group_by_source, project_source
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import DecoderRows, EncoderRows
from plmjax.layers.sinusoids import sinusoids
from plmjax.layers.stack import stack_states
from plmjax.layers.words.embeddings import Embedding, check_ids
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderForConditionalGeneration,
    EncoderDecoderModel,
    both_sides,
    encoder_decoder_cache,
    encoder_decoder_parts,
)

LAYER_NORM_EPSILON = 1e-5
"""Added to the variance in layer normalisation, as in fairseq and in transformers."""


@dataclasses.dataclass(frozen=True)
class TransformerConfig(EncoderDecoderConfig):
    """Sizes of a Transformer; the defaults are the base model.

    Arguments override the fields of a named size: `TransformerConfig.base(vocab_size=8192)`.
    """

    vocab_size: int = 37000
    """Vocabulary size, which both sides share."""
    output_bias: bool = False
    """True to add a bias, `final_logits_bias`, to the scores of the next token, as in Marian."""
    scale_embedding: bool = True
    """True to multiply words by sqrt(D) before positions are added."""

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
        return nn.initializers.normal(self.d_model**-0.5)

    @property
    def heads_initializer(self) -> Initializer:
        """Initializer of the kernels [D N H] of queries, keys and values."""
        return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2))

    @property
    def output_projection_initializer(self) -> Initializer:
        """Initializer of the kernel [N H D] after attention."""
        return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=(0, 1), out_axis=2)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; each is followed by dropout, the residual sum and a norm."""

    config: EncoderDecoderConfig
    execution: Execution

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.attention = self.make_attention()
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.feed_forward = feed_forward_of(config, config.encoder_ffn_dim, execution)
        self.feed_forward_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.dropout = Dropout(config.dropout)

    def make_attention(self) -> MultiHeadAttention:
        """Return the self-attention; a layer with another kind of attention overrides this."""
        config = self.config
        return attention_of(config, config.d_model, config.encoder_attention_heads, self.execution)

    def attend(self, x: jax.Array, mask_terms: MaskTerms, *, deterministic: bool) -> jax.Array:
        """Attend within rows, [B S D] -> [B S D]."""
        return self.attention(x, x, mask_terms, deterministic=deterministic)

    def __call__(self, x: jax.Array, *seen: Any, deterministic: bool) -> jax.Array:
        """Map [B S D] to [B S D]; `seen` are the other arguments of `attend`."""
        attend = functools.partial(self.attend, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        x = shard_hidden(self.attention_layer_norm(x + dropout(attend(x, *seen))))
        return shard_hidden(self.feed_forward_layer_norm(x + dropout(feed_forward(x))))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, then feed-forward.

    Each is followed by dropout, the residual sum and a norm, as in the encoder.
    """

    config: EncoderDecoderConfig
    execution: Execution

    def setup(self) -> None:
        config, execution, heads = self.config, self.execution, self.config.decoder_attention_heads
        self.attention = attention_of(config, config.d_model, heads, execution)
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.cross_attention = attention_of(config, config.d_model, heads, execution)
        self.cross_attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.feed_forward = feed_forward_of(config, config.decoder_ffn_dim, execution)
        self.feed_forward_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.dropout = Dropout(config.dropout)

    def key_values(self, encoded: jax.Array) -> KeyValues:
        """Project the encoder's output to keys and values: [B S D] -> [B S N H] each."""
        return self.cross_attention.key_values(encoded)

    def __call__(
        self,
        y: jax.Array,
        mask_terms: MaskTerms,
        source: KeyValues,
        *,
        source_mask: MaskTerms,
        cache: KeyValueCache | None,
        layer: jax.Array,
        deterministic: bool,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Map [B T D] to [B T D], and to the cache with the layer's keys and values of these tokens."""
        attend = functools.partial(self.attention.attend, deterministic=deterministic)
        attend_to_source = functools.partial(self.cross_attention.attend, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        key_values, cache = with_past(self.attention.key_values(y), cache, layer)
        y = shard_hidden(self.attention_layer_norm(y + dropout(attend(y, key_values, mask_terms))))
        context = attend_to_source(group_by_source(y, source), source, source_mask).reshape(y.shape)
        y = shard_hidden(self.cross_attention_layer_norm(y + dropout(context)))
        return shard_hidden(self.feed_forward_layer_norm(y + dropout(feed_forward(y)))), cache


def attention_of(config: EncoderDecoderConfig, size: int, heads: int, execution: Execution) -> MultiHeadAttention:
    """Return the attention of a layer with `size` features."""
    init, joining = config.heads_initializer, config.output_projection_initializer
    return MultiHeadAttention(size, heads, config.attention_dropout, init, execution, output_init=joining)


def feed_forward_of(config: EncoderDecoderConfig, inner_size: int, execution: Execution) -> FeedForward:
    """Return the feed-forward network of a layer."""
    activation, dropout = config.activation_function, config.activation_dropout
    return FeedForward(inner_size, activation, config.initializer, execution, dropout=dropout)


def run_encoder(
    layers: EncoderLayer,
    depth: int,
    execution: Execution,
    x: jax.Array,
    *,
    mask_terms: MaskTerms,
    deterministic: bool,
    output_hidden_states: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Run an encoder's layers: [B S D] -> [B S D].

    If requested, return also all hidden states [depth+1 B S D].
    """
    x = shard_hidden(x)

    def apply(layer: EncoderLayer, x: jax.Array, _: None) -> jax.Array:
        return layer(x, mask_terms, deterministic=deterministic)

    return stack_states(apply, layers, depth, execution=execution, x=x, output_hidden_states=output_hidden_states)


def words_at_positions(config: Any, words: Embedding, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
    """Compute words + sinusoids, int [B T] twice -> [B T D]; the words are scaled if the config says so."""
    size, rows = config.d_model, config.max_position_embeddings
    check_ids(positions, rows, f"the {rows} positions of the model")
    table = jnp.asarray(sinusoids(np.arange(rows), size), words.dtype)
    scale = math.sqrt(size) if config.scale_embedding else 1.0
    return scale * words(input_ids) + jnp.take(table, positions, axis=0, mode="clip")


class TransformerModel(EncoderDecoderModel):
    """The word table, which both sides share, and the layers of each side, whose parameters are stacked [L ...]."""

    config: EncoderDecoderConfig
    execution: Execution = Execution()
    encoder_layer: ClassVar[type[nn.Module]] = EncoderLayer

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", config.token_initializer, execution.dtype)
        self.encoder_layers = self.encoder_layer(config, execution)
        self.decoder_layers = DecoderLayer(config, execution)
        self.dropout = Dropout(config.dropout)

    def source_vectors(self, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Compute the input of the encoder's first layer, before dropout: int [B S] twice -> [B S D]."""
        return words_at_positions(self.config, self.words, input_ids, positions)

    def target_vectors(self, input_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Compute the input of the decoder's first layer, before dropout: int [B T] twice -> [B T D]."""
        return self.source_vectors(input_ids, positions)

    def _encode(
        self,
        input_ids: jax.Array,
        rows: EncoderRows,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        x = self.dropout(self.source_vectors(input_ids, rows.positions), deterministic)
        flags = {"deterministic": deterministic, "output_hidden_states": output_hidden_states}
        return run_encoder(
            self.encoder_layers, self.config.encoder_layers, self.execution, x, mask_terms=rows.mask_terms, **flags
        )

    def _key_values(self, encoded: jax.Array) -> KeyValues:
        return project_source(self.decoder_layers, self.config.decoder_layers, self.execution, encoded)

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
        y = self.dropout(self.target_vectors(input_ids, rows.positions), deterministic)
        y = shard_hidden(y)

        def apply(layer: DecoderLayer, y: jax.Array, source: KeyValues, *, cache: Any, number: jax.Array) -> tuple:
            return layer(
                y,
                rows.mask_terms,
                source,
                source_mask=source_mask,
                cache=cache,
                layer=number,
                deterministic=deterministic,
            )

        layers, numbers = self.decoder_layers, jnp.arange(self.config.decoder_layers)
        last, cache, states = decode_layers(
            apply,
            layers,
            numbers,
            execution=self.execution,
            x=y,
            source=source,
            cache=rows.cache,
            output_hidden_states=output_hidden_states,
        )
        return EncoderDecoderOutput(
            last_hidden_state=last,
            hidden_states=states,
            scores=VocabularyScores(last, self.words.embedding),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
        )


class TransformerForConditionalGeneration(EncoderDecoderForConditionalGeneration):
    """The Transformer; its word table is the output layer, with a bias if the config has one."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        if self.config.output_bias:
            init = as_bias(nn.initializers.zeros_init(), ("vocab",))
            self.final_logits_bias = self.param("final_logits_bias", init, (self.config.vocab_size,))

    def _add_scores(self, output: EncoderDecoderOutput) -> EncoderDecoderOutput:
        if not self.config.output_bias:
            return output
        table = self.model.words.embedding
        return output.replace(scores=VocabularyScores(output.last_hidden_state, table, self.final_logits_bias))


SYSTEM = declare(
    System(
        TransformerConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: TransformerForConditionalGeneration,
            Purpose.CAUSAL_LM: TransformerForConditionalGeneration,
            Purpose.SEQ2SEQ: TransformerForConditionalGeneration,
            Purpose.ENCODING: TransformerModel,
        },
        name="transformer",
        template=lambda config: Template("A end", "A end B end", "last"),
        parts=encoder_decoder_parts,
        cache=encoder_decoder_cache,
        token_table="transformer/words/embedding",
    )
)
