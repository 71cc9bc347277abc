"""Lite Transformer's language model (Wu et al. 2020, arXiv 2004.11886, section 5; mit-han-lab/lite-transformer, the
language model's fairseq/models/transformer_lm_multibranch_v2.py and configs/wikitext-103).

The decoder without a source. The norms stand before the sublayers, since the training was not stable otherwise:

    x_t = sqrt(D) words[token_t] + sinusoids[t],  L times:
    x = x + [attention(norm(x)_1); convolution(norm(x)_2)],  of the tokens up to each
    x = x + feed_forward(norm(x))
    next token:  softmax(words . x_t)

The kernel size K grows from layer to layer: in the upper half of the published model a convolution reads 63 tokens.

Deviation: one table holds the words and is the output layer. In the released run on WikiText-103 words and softmax are
adaptive, with clusters that begin at 20,000 and 60,000, each with a quarter of the features of the previous one.
Deviation: the padding token has a trained row, and a row may hold several packed texts (`segment_ids`), as in
lite_transformer.py. Neither attention nor a convolution sees another text.
As in the released code, no norm follows the last layer.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import TEXT_ALONE
from plmjax.errors import FRACTION, FROM_1, check_ranges
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import check_activation
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import DecoderRows, read_rows
from plmjax.layers.stack import stack
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.decoder import DecoderForCausalLM, DecoderOutput
from plmjax.models.lite_transformer.branches import (
    BranchesConfig,
    CausalBranches,
    LongShortCache,
    equal_kernels,
    long_short_cache,
)
from plmjax.models.transformer import LAYER_NORM_EPSILON, feed_forward_of, words_at_positions

KERNEL_SIZES = (15,) * 2 + (31,) * 4 + (63,) * 6
"""Number of tokens that the convolutions of the published model read (default of --decoder-kernel-size-list)."""


@dataclasses.dataclass(frozen=True)
class LiteTransformerDecoderConfig(BranchesConfig):
    """Sizes of Lite Transformer's language model, named as in fairseq; the defaults are those for WikiText-103.

    Raises:
        UserError: sizes that do not fit each other, an unknown activation or an unknown convolution.
    """

    vocab_size: int = 267_735
    """Vocabulary size."""
    max_position_embeddings: int = 3072
    """Maximum length of a row."""
    d_model: int = 896
    """Hidden size, D; attention reads one half of the features, the convolution the other half."""
    decoder_layers: int = 12
    """Number of layers, L."""
    decoder_attention_heads: int = 4
    """Number of attention heads, N; they read half of the features."""
    decoder_ffn_dim: int = 896
    """Inner size of the feed-forward network, F."""
    decoder_kernel_sizes: tuple[int, ...] = KERNEL_SIZES
    """Number of positions that the convolution of each layer reads, K: the token itself and those before it."""
    activation_function: str = "relu"
    """Activation: relu, gelu (exact), gelu_new (tanh form) or swish."""
    convolution_dropout: float = 0.14
    """Dropout rate of the weights of a convolution (DropConnect)."""
    dropout: float = 0.21
    """Dropout rate of the first layer's input and of each sublayer's output."""
    attention_dropout: float = 0.14
    """Dropout rate of attention probabilities."""
    activation_dropout: float = 0.1
    """Dropout rate of the features inside the feed-forward network."""
    eos_token_id: int | None = None
    """Token id between documents, and at the end of a text."""

    field_names: ClassVar[dict[str, str]] = {
        "width": "d_model",
        "depth": "decoder_layers",
        "longest": "max_position_embeddings",
        "end_token": "eos_token_id",
    }

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "max_position_embeddings", "d_model", "decoder_layers", "decoder_ffn_dim")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1))
        check_ranges("model", self, dropout=FRACTION, attention_dropout=FRACTION, activation_dropout=FRACTION)
        check_activation(self.activation_function)
        half = self.d_model // 2
        self.check_branches(
            {"decoder_attention_heads": half, "convolution_heads": half}, {"decoder_kernel_sizes": self.decoder_layers}
        )

    wikitext103 = Size("37,182,208 parameters of layers (released settings for WikiText-103).")
    tiny = Size(
        "Two layers of 128.",
        max_position_embeddings=512,
        d_model=128,
        decoder_layers=2,
        decoder_ffn_dim=128,
        decoder_kernel_sizes=(7, 15),
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        convolution_dropout=0.0,
    )

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(
            self, dropout=rate, attention_dropout=rate, activation_dropout=rate, convolution_dropout=rate
        )

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only: those of the branches and 2 D F per
        token of each layer, and D V per prediction. Attention counts all pairs of tokens, although half are hidden.
        """
        feed_forward = 2 * sequence_length * self.d_model * self.decoder_ffn_dim
        layers = (
            self.branches_products(sequence_length, kernel) + feed_forward for kernel in self.decoder_kernel_sizes
        )
        return 6.0 * batch_size * (sum(layers) + predictions * self.d_model * self.vocab_size)


class LiteTransformerDecoderLayer(CausalBranches):
    """The two branches, then feed-forward; each reads the normalised sum and adds its output after dropout."""

    config: LiteTransformerDecoderConfig

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.create_branches()
        self.attention_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.feed_forward = feed_forward_of(config, config.decoder_ffn_dim, execution)
        self.feed_forward_layer_norm = LayerNorm(LAYER_NORM_EPSILON, execution.dtype)
        self.dropout = Dropout(config.dropout)

    def __call__(
        self, x: jax.Array, rows: DecoderRows, cache: LongShortCache | None, layer: jax.Array, *, deterministic: bool
    ) -> tuple[jax.Array, LongShortCache | None]:
        """Map [B T D] to [B T D], and to the updated cache."""
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        y, cache = self.branches(self.attention_layer_norm(x), rows, cache, layer, deterministic=deterministic)
        x = shard_hidden(x + dropout(y))
        return shard_hidden(x + dropout(feed_forward(self.feed_forward_layer_norm(x)))), cache


class LiteTransformerDecoderModel(nn.Module):
    """The words, and L layers. Adjacent layers with equal kernel sizes are one stack."""

    config: LiteTransformerDecoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", config.token_initializer, execution.dtype)
        self.layers = [
            LiteTransformerDecoderLayer(config, size, execution)
            for size, _, _ in equal_kernels(config.decoder_kernel_sizes)
        ]
        self.dropout = Dropout(config.dropout)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cache: LongShortCache | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> DecoderOutput:
        """Take and return the same as `GptModel`, but without `prefix_lengths`."""
        config = self.config
        rows = read_rows(
            config,
            input_ids,
            attention_mask,
            positions=positions,
            segment_ids=segment_ids,
            prefix_lengths=None,
            cache=cache,
        )
        x = self.dropout(words_at_positions(config, self.words, input_ids, rows.positions), deterministic)
        x = shard_hidden(x)
        states, cache = [x[None]], rows.cache

        def body(layer: LiteTransformerDecoderLayer, carried: tuple[jax.Array, Any], number: jax.Array) -> tuple:
            carried = layer(carried[0], rows, carried[1], number, deterministic=deterministic)
            return carried, carried[0] if output_hidden_states else None

        with collect(output_attentions) as attentions:
            for layers, (_, first, count) in zip(self.layers, equal_kernels(config.decoder_kernel_sizes), strict=True):
                (x, cache), after = stack(
                    body, layers, count, execution=self.execution, x=(x, cache), inputs=first + jnp.arange(count)
                )
                states.append(after)
        return DecoderOutput(
            last_hidden_state=x,
            hidden_states=jnp.concatenate(states) if output_hidden_states else None,
            scores=VocabularyScores(x, self.words.embedding),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
            attentions=attentions.get(OWN),
        )


class LiteTransformerForCausalLM(DecoderForCausalLM):
    """The language model, whose word table is the output layer."""

    config: LiteTransformerDecoderConfig


def _parts(config: LiteTransformerDecoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the words and each layer."""
    layers = (
        ParameterGroup((f"lite_transformer_decoder/layers_{run}",), layer)
        for run, (_, _, count) in enumerate(equal_kernels(config.decoder_kernel_sizes))
        for layer in range(count)
    )
    return ParameterGroup(("lite_transformer_decoder/words",)), *layers


SYSTEM = declare(
    System(
        LiteTransformerDecoderConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: LiteTransformerForCausalLM,
            Purpose.CAUSAL_LM: LiteTransformerForCausalLM,
            Purpose.ENCODING: LiteTransformerDecoderModel,
            Purpose.EMBEDDING: LiteTransformerDecoderModel,
        },
        name="lite_transformer_decoder",
        template=lambda config: TEXT_ALONE,
        parts=_parts,
        cache=long_short_cache,
        token_table="lite_transformer_decoder/words/embedding",
    )
)
