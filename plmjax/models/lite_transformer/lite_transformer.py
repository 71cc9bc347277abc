"""Lite Transformer with long-short range attention (Wu et al. 2020, arXiv 2004.11886; mit-han-lab/lite-transformer).

A Transformer whose self-attention reads one half of the features and leaves the other half to a convolution. Attention
relates distant tokens, the convolution relates neighbors:

    source:  x_s = sqrt(D) words[source_s] + sinusoids[s]
             L times:  x = norm(x + [attention(x_1, x_1); convolution(x_2)]),  x = [x_1; x_2]
                       x = norm(x + feed_forward(x))
    target:  the same with attention to the tokens up to each and a convolution of these, then attention to the source

The weights of the convolution are a softmax over its K positions, shared by the features of a head. Dynamic weights are
computed from each token (translation of WMT, summaries), lightweight weights are parameters (IWSLT). K grows from layer
to layer. The feed-forward network is as wide as the rest ("flattened"), because its width dominates the cost of a small
Transformer (section 3).

Deviation: the padding token has a trained row, as in models/transformer.py; its row is 0 in the released code.
Deviation: a row may hold several packed pairs (`segment_ids`, `decoder_segment_ids`). Neither attention nor a
convolution sees another pair.
Deviation: padding is 0 where a convolution reads it. The released encoder sets it to 0 before the first projection,
whose bias the convolution then reads, so that a row depends on the padding after it.
"""

import dataclasses
import functools
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import UserError
from plmjax.layers.attention.multi_head import KeyValues
from plmjax.layers.dropout import Dropout
from plmjax.layers.encoder_decoder import EncoderDecoderOutput, group_by_source
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import DecoderRows, EncoderRows
from plmjax.layers.stack import stack
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.encoder_decoder import EncoderDecoderConfig, EncoderDecoderForConditionalGeneration
from plmjax.models.lite_transformer.branches import (
    BranchesConfig,
    CausalBranches,
    LongShortCache,
    convolution_of,
    equal_kernels,
    long_short_cache,
)
from plmjax.models.transformer import LAYER_NORM_EPSILON, TransformerModel, attention_of, feed_forward_of


def flattened(size: int, **fields: Any) -> dict[str, Any]:
    """Return the config fields of a model with `size` as hidden size and as inner size of its feed-forward networks."""
    return {"d_model": size, "encoder_ffn_dim": size, "decoder_ffn_dim": size, **fields}


@dataclasses.dataclass(frozen=True)
class LiteTransformerConfig(BranchesConfig, EncoderDecoderConfig):
    """Sizes of a Lite Transformer; the defaults are those of the largest model for translation of WMT.

    Arguments override the fields of a named size: `LiteTransformerConfig.wmt_496(vocab_size=8192)`.

    Raises:
        UserError: sizes that do not fit each other, or an unknown convolution.
    """

    vocab_size: int = 40_000
    """Vocabulary size, which both sides share."""
    d_model: int = 496
    """Hidden size, D; self-attention reads one half of the features, the convolution the other half."""
    encoder_attention_heads: int = 4
    """Number of heads of the encoder's self-attention, which reads half of the features."""
    decoder_attention_heads: int = 4
    """Number of heads of the decoder's self-attention, which reads half of the features, N."""
    cross_attention_heads: int = 8
    """Number of heads of the decoder's attention to the source, which reads all features."""
    encoder_ffn_dim: int = 496
    """Inner size of the encoder's feed-forward network."""
    decoder_ffn_dim: int = 496
    """Inner size of the decoder's feed-forward network, F."""
    encoder_kernel_sizes: tuple[int, ...] = (3, 7, 15, 31, 31, 31)
    """Number of positions that the convolution of each encoder layer reads, K; an odd number."""
    decoder_kernel_sizes: tuple[int, ...] = (3, 7, 15, 31, 31, 31)
    """Number of positions that the convolution of each decoder layer reads: the token itself and those before it."""
    attention_dropout: float = 0.1
    """Dropout rate of attention probabilities."""

    wmt_200 = Size("2,884,400 parameters of layers (released commands for WMT 2014).", **flattened(200))
    wmt_408 = Size("11,739,792 parameters of layers (ibid.).", **flattened(408))
    wmt_496 = Size("17,283,616 parameters of layers (ibid.).", attention_dropout=0.08)
    iwslt = Size(
        "1,713,584 parameters of layers (released command for IWSLT 2014, German to English).",
        convolution="lightweight",
        dropout=0.2,
        **flattened(160),
    )
    tiny = Size(
        "Two layers of 128 on each side.",
        encoder_layers=2,
        decoder_layers=2,
        encoder_kernel_sizes=(3, 7),
        decoder_kernel_sizes=(3, 7),
        **flattened(128),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        half = self.d_model // 2
        self.check_branches(
            {
                "encoder_attention_heads": half,
                "decoder_attention_heads": half,
                "convolution_heads": half,
                "cross_attention_heads": self.d_model,
            },
            {"encoder_kernel_sizes": self.encoder_layers, "decoder_kernel_sizes": self.decoder_layers},
        )
        if any(size % 2 == 0 for size in self.encoder_kernel_sizes):
            raise UserError(
                f"Expected odd sizes, as many tokens before a token as after it, found {self.encoder_kernel_sizes}; "
                f"change --model.encoder_kernel_sizes."
            )

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(super().with_dropout(rate), convolution_dropout=rate)

    def layers_products(self, source: int, target: int) -> int:
        """Return the multiplications of the matrix products of all layers for a row with `source` and `target` tokens.

        A layer has the two branches, 2 D F per token and, in the decoder, attention to the source as in a Transformer.
        """
        size, branches = self.d_model, self.branches_products
        encoder = sum(
            branches(source, kernel) + 2 * source * size * self.encoder_ffn_dim for kernel in self.encoder_kernel_sizes
        )
        across = 2 * (target + source) * size**2 + 2 * target * source * size if target else 0
        decoder = sum(
            branches(target, kernel) + across + 2 * target * size * self.decoder_ffn_dim
            for kernel in self.decoder_kernel_sizes
        )
        return encoder + decoder


class EncoderLayer(nn.Module):
    """Attention beside a convolution, then feed-forward; each is followed by dropout, the residual sum and a norm."""

    config: LiteTransformerConfig
    kernel_size: int
    execution: Execution

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.attention = attention_of(config, config.d_model // 2, config.encoder_attention_heads, execution)
        self.convolution = convolution_of(config, self.kernel_size, execution)
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.feed_forward = feed_forward_of(config, config.encoder_ffn_dim, execution)
        self.feed_forward_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.dropout = Dropout(config.dropout)

    def __call__(self, x: jax.Array, rows: EncoderRows, *, deterministic: bool) -> jax.Array:
        """Map [B S D] to [B S D]."""
        attention = functools.partial(self.attention, deterministic=deterministic)
        convolution = functools.partial(self.convolution, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        distant, near = jnp.split(x, 2, axis=-1)
        inputs, side = self.convolution.inputs(near, rows.mask), self.kernel_size // 2
        window = jnp.pad(inputs, ((0, 0), (side, side), (0, 0)))
        distant = attention(distant, distant, rows.mask_terms)
        near = convolution(inputs, window, rows.segment_ids, side)
        x = shard_hidden(self.attention_layer_norm(x + dropout(jnp.concatenate([distant, near], axis=-1))))
        return shard_hidden(self.feed_forward_layer_norm(x + dropout(feed_forward(x))))


class DecoderLayer(CausalBranches):
    """The two branches, which see no later token, attention to the source, then feed-forward.

    Each is followed by dropout, the residual sum and a norm, as in the encoder.
    """

    config: LiteTransformerConfig

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.create_branches()
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.cross_attention = attention_of(config, config.d_model, config.cross_attention_heads, execution)
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
        rows: DecoderRows,
        source: KeyValues,
        *,
        source_mask: MaskTerms,
        cache: LongShortCache | None,
        layer: jax.Array,
        deterministic: bool,
    ) -> tuple[jax.Array, LongShortCache | None]:
        """Map [B T D] to [B T D], and to the updated cache."""
        attend_to_source = functools.partial(self.cross_attention.attend, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        branches, cache = self.branches(y, rows, cache, layer, deterministic=deterministic)
        y = shard_hidden(self.attention_layer_norm(y + dropout(branches)))
        context = attend_to_source(group_by_source(y, source), source, source_mask).reshape(y.shape)
        y = shard_hidden(self.cross_attention_layer_norm(y + dropout(context)))
        return shard_hidden(self.feed_forward_layer_norm(y + dropout(feed_forward(y)))), cache


class LiteTransformerModel(TransformerModel):
    """The words of both sides, and the layers of each side. Adjacent layers with equal kernel sizes are one stack."""

    config: LiteTransformerConfig

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", config.token_initializer, execution.dtype)
        self.encoder_layers = [
            EncoderLayer(config, size, execution) for size, _, _ in equal_kernels(config.encoder_kernel_sizes)
        ]
        self.decoder_layers = [
            DecoderLayer(config, size, execution) for size, _, _ in equal_kernels(config.decoder_kernel_sizes)
        ]
        self.dropout = Dropout(config.dropout)

    def _encode(
        self, input_ids: jax.Array, rows: EncoderRows, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        x = self.dropout(self.source_vectors(input_ids, rows.positions), deterministic)
        x = shard_hidden(x)
        states = [x[None]]

        def body(layer: EncoderLayer, x: jax.Array, inputs: None) -> tuple[jax.Array, jax.Array | None]:
            x = layer(x, rows, deterministic=deterministic)
            return x, x if output_hidden_states else None

        for layers, (_, _, count) in zip(
            self.encoder_layers, equal_kernels(self.config.encoder_kernel_sizes), strict=True
        ):
            x, after = stack(body, layers, count, execution=self.execution, x=x)
            states.append(after)
        return x, jnp.concatenate(states) if output_hidden_states else None

    def _key_values(self, encoded: jax.Array) -> KeyValues:
        def body(layer: DecoderLayer, encoded: jax.Array, inputs: None) -> tuple[jax.Array, KeyValues]:
            return encoded, layer.key_values(encoded)

        runs = zip(self.decoder_layers, equal_kernels(self.config.decoder_kernel_sizes), strict=True)
        made = [stack(body, layers, count, execution=self.execution, x=encoded)[1] for layers, (_, _, count) in runs]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *made)

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
        made = source if isinstance(source, KeyValues) else None
        y = self.dropout(self.target_vectors(input_ids, rows.positions), deterministic)
        y = shard_hidden(y)
        states, cache = [y[None]], rows.cache

        def body(layer: DecoderLayer, carried: tuple[jax.Array, Any], lane: tuple) -> tuple[Any, Any]:
            (y, cache), (number, key_values) = carried, lane
            key_values = layer.key_values(source) if key_values is None else key_values
            carried = layer(
                y, rows, key_values, source_mask=source_mask, cache=cache, layer=number, deterministic=deterministic
            )
            return carried, carried[0] if output_hidden_states else None

        for layers, (_, first, count) in zip(
            self.decoder_layers, equal_kernels(self.config.decoder_kernel_sizes), strict=True
        ):
            own = slice(first, first + count)
            lanes = first + jnp.arange(count), jax.tree.map(lambda kept, own=own: kept[own], made)
            (y, cache), after = stack(body, layers, count, execution=self.execution, x=(y, cache), inputs=lanes)
            states.append(after)
        return EncoderDecoderOutput(
            last_hidden_state=y,
            hidden_states=jnp.concatenate(states) if output_hidden_states else None,
            scores=VocabularyScores(y, self.words.embedding),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
        )


class LiteTransformerForConditionalGeneration(EncoderDecoderForConditionalGeneration):
    """The Lite Transformer, whose word table is the output layer."""

    config: LiteTransformerConfig


def _parts(config: LiteTransformerConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the word table, each layer of the encoder and each of the decoder."""
    groups = [ParameterGroup(("lite_transformer/words",))]
    for side, sizes in (("encoder", config.encoder_kernel_sizes), ("decoder", config.decoder_kernel_sizes)):
        for run, (_, _, count) in enumerate(equal_kernels(sizes)):
            prefix = f"lite_transformer/{side}_layers_{run}"
            groups += [ParameterGroup((prefix,), layer) for layer in range(count)]
    return tuple(groups)


SYSTEM = declare(
    System(
        LiteTransformerConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: LiteTransformerForConditionalGeneration,
            Purpose.CAUSAL_LM: LiteTransformerForConditionalGeneration,
            Purpose.SEQ2SEQ: LiteTransformerForConditionalGeneration,
            Purpose.ENCODING: LiteTransformerModel,
        },
        name="lite_transformer",
        template=lambda config: Template("A end", "A end B end", "last"),
        parts=_parts,
        cache=long_short_cache,
        token_table="lite_transformer/words/embedding",
    )
)
