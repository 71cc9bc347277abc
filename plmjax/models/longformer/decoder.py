"""Longformer's language model of characters (Beltagy et al. 2020, arXiv 2004.05150, section 4 and appendix B).

A Transformer-XL without a memory, with the norms before the sublayers and GELU:

    x = x + attention(norm(x));  x = x + feed_forward(norm(x))
    next character:  softmax(words . x)

A head sees the token itself and the w tokens before it in steps of d, its dilation. With a projection r of the
sinusoids of each distance, and two vectors u and v that all layers share,

    score(i, j) = (q_i . k_j + q_i . r[i - j] + u . k_j + v . r[i - j]) / sqrt(H)    for i - j = 0, d, 2 d, ..., w d

w grows from the lowest layer to the highest. d is 1 in the lower layers, and above 1 for two heads of the upper ones.
The model is trained in five stages. Each doubles all windows and the length of the rows and halves the learning rate
(experiments/longformer_characters_4x4.py).

The attention is in decoder_attention.py. While a text is generated, each layer keeps the keys and values of the last
tokens that any head can see.

Table 12 of the paper does not give the windows between 32 and 512. The mean window of `small` is 229 tokens, near the
230 of table 4. Table 12 counts the characters that a dilation leaves out, 0 to 3; here dilation is the distance between
adjacent keys, 1 to 4. The paper does not say which two heads are dilated; here they are the last ones. Table 12 gives
8,192 tokens as the largest window of the first stage and none for the fifth; 512 becomes 8,192 after four doublings.

Deviation: as in Transformer-XL with norms before the sublayers, no norm follows the last layer.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import TEXT_ALONE
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.attention.cache import AXES
from plmjax.layers.attention.multi_head import KeyValues
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.relative_shift import copy_per_shard
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.sinusoids import sinusoids
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.segments import KeyValueMemory, SegmentOutput, segment_documents
from plmjax.models.longformer.decoder_attention import Documents, LongformerDecoderAttention
from plmjax.models.longformer.longformer import for_layers
from plmjax.models.transformer_xl import position_biases

WINDOWS = (32,) * 2 + (64,) * 2 + (128,) * 2 + (256,) * 3 + (512,) * 3
"""Windows of the small model in the first stage."""
LARGE_WINDOWS = (32,) * 5 + (64,) * 5 + (128,) * 5 + (256,) * 7 + (512,) * 8
"""Windows of the large model in the first stage."""


@dataclasses.dataclass(frozen=True)
class LongformerDecoderConfig(ModelConfig):
    """Sizes of Longformer's language model; the defaults are those of `small` in the first stage.

    Raises:
        UserError: sizes do not fit each other, or windows or dilations are below 1 or are neither one number nor one
            for each layer.
    """

    vocab_size: int = 204
    """Vocabulary size."""
    d_model: int = 512
    """Hidden size, D."""
    n_layer: int = 12
    """Number of layers, L."""
    n_head: int = 8
    """Number of attention heads, N."""
    d_inner: int = 2048
    """Inner size of the feed-forward network, F."""
    attention_window: tuple[int, ...] = WINDOWS
    """Number of tokens before a token that it sees: one for each layer, or one for all layers."""
    attention_dilation: tuple[int, ...] = (1,) * 6 + (2, 2, 3, 3, 4, 4)
    """Distance between adjacent keys of the dilated heads: one for each layer, or one for all layers; 1 is none."""
    dilated_heads: int = 2
    """Number of heads of a layer that are dilated, the last ones."""
    dropout: float = 0.2
    """Dropout rate of embeddings, sinusoids, sublayers, inner features and the last layer's output."""
    layer_norm_epsilon: float = 1e-5
    """Added to the variance in layer normalisation."""
    init_std: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""

    field_names: ClassVar[dict[str, str]] = {"width": "d_model", "depth": "n_layer"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "n_layer", "n_head", "d_inner")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), init_std=FROM_0, dropout=FRACTION)
        check_ranges("model", self, dilated_heads=(0, self.n_head + 1))
        check_ranges("model", self, layer_norm_epsilon=ABOVE_0)
        if self.d_model % self.n_head:
            raise UserError(
                f"Expected features that divide by the heads, found {self.d_model} and {self.n_head} heads; change "
                f"--model.d_model or --model.n_head."
            )
        for name in ("attention_window", "attention_dilation"):
            numbers = getattr(self, name)
            if len(numbers) not in (1, self.n_layer) or min(numbers) < 1:
                raise UserError(
                    f"Expected --model.{name} of numbers from 1, one for all or one for each of {self.n_layer} layers, "
                    f"found {' '.join(map(str, numbers)) or 'none'}; change it."
                )

    small = Size("41,055,436 parameters.")
    large = Size(
        "102,480,076 parameters.",
        n_layer=30,
        attention_window=LARGE_WINDOWS,
        attention_dilation=(1,) * 15 + (2,) * 5 + (3,) * 5 + (4,) * 5,
        dropout=0.4,
    )
    tiny = Size(
        "Two layers of 128 with windows of 16 and 32; none was published.",
        d_model=128,
        n_layer=2,
        n_head=4,
        d_inner=512,
        attention_window=(16, 32),
        attention_dilation=(1, 2),
        dropout=0.0,
    )

    @property
    def d_head(self) -> int:
        """Size of a head, H."""
        return self.d_model // self.n_head

    @property
    def layers(self) -> list[tuple[int, int]]:
        """The window and the dilation of each layer."""
        both = (for_layers(numbers, self.n_layer) for numbers in (self.attention_window, self.attention_dilation))
        return list(zip(*both, strict=True))

    @property
    def runs(self) -> list[tuple[tuple[int, int], slice]]:
        """The window, the dilation and the slice of each run of adjacent layers that are alike."""
        first, found = 0, []
        for alike, layers in itertools.groupby(self.layers):
            count = len(list(layers))
            found.append((alike, slice(first, first + count)))
            first += count
        return found

    @property
    def reach(self) -> int:
        """Number of tokens before a token that the farthest head of any layer sees."""
        return max(window * (dilation if self.dilated_heads else 1) for window, dilation in self.layers)

    @property
    def widest_window(self) -> int:
        return max(self.attention_window)

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.init_std)

    def widen(self, factor: int) -> Self:
        """Return the same sizes with windows `factor` times as wide, for another stage."""
        return dataclasses.replace(self, attention_window=tuple(factor * window for window in self.attention_window))

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only. A head with a window of w tokens and a
        dilation d has R = min(T / d, w + 1) keys for each token, and projects the vectors of R distances.
        """
        rows, length, size = batch_size, sequence_length, self.d_model
        total = self.n_layer * rows * length * (4 * size**2 + 2 * size * self.d_inner)
        for window, dilation in self.layers:
            for heads, step in ((self.n_head - self.dilated_heads, 1), (self.dilated_heads, dilation)):
                keys, features = min(-(-length // step), window + 1), heads * self.d_head
                total += keys * size * features
                total += rows * length * (3 * keys + 2) * features  # with u, and the shift's column
        return 6.0 * (total + rows * predictions * size * self.vocab_size)


class LongformerDecoderLayer(nn.Module):
    """Attention within the window, then feed-forward; each after a norm, with dropout and the residual sum after it."""

    config: LongformerDecoderConfig
    window: int
    dilation: int
    execution: Execution

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        documents: Documents,
        table: jax.Array,
        *,
        biases: tuple[jax.Array, jax.Array],
        past: KeyValues | None,
        deterministic: bool,
    ) -> tuple[jax.Array, KeyValues]:
        """Map [B T D] to [B T D], and return the keys and values of past and new tokens, [B M+T N H].

        Args:
            table: the sinusoids of all distances that a head can see, the farthest first, [G R D] for G shards of rows.
            biases: u and v, float32 [N H].
            past: keys and values of M tokens before these, [B N H M].
        """
        config, execution, init = self.config, self.execution, self.config.initializer
        norm = functools.partial(LayerNorm, config.layer_norm_epsilon, execution.dtype)
        attention_norm, feed_forward_norm = norm(name="attention_layer_norm"), norm(name="feed_forward_layer_norm")
        attention = LongformerDecoderAttention(
            config.d_model,
            config.n_head,
            0.0,
            init,
            execution,
            use_bias=False,
            window=self.window,
            dilation=self.dilation,
            dilated_heads=config.dilated_heads,
            name="attention",
        )
        sizes = config.d_inner, "gelu"
        feed_forward = FeedForward(*sizes, init, execution, dropout=config.dropout, name="feed_forward")
        dropout = functools.partial(Dropout(config.dropout), deterministic=deterministic)

        y, key_values = attention(attention_norm(x), documents, table, biases=biases, past=past)
        x = shard_hidden(x + dropout(y))
        return shard_hidden(x + dropout(feed_forward(feed_forward_norm(x), deterministic=deterministic))), key_values


class LongformerDecoderModel(nn.Module):
    """The word table, and L layers. Adjacent layers with equal windows and equal dilations are stacked."""

    config: LongformerDecoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", config.initializer, execution.dtype)
        self.biases = position_biases(self, config)
        self.layers = [LongformerDecoderLayer(config, *alike, execution) for alike, _ in config.runs]
        self.dropout = Dropout(config.dropout)
        self.table_dropout = Dropout(config.dropout, axes=())

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        cache: KeyValueMemory | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SegmentOutput:
        """Read rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 0 for tokens that nobody sees.
            cache: the tokens before these; None without any.
            deterministic: disables dropout.
            output_hidden_states: returns the outputs of all layers.
            output_attentions: returns the weights of attention of all layers (`plmjax.contracts.attentions`). S is M +
                T with a memory of M tokens.
        """
        config, (rows, length) = self.config, input_ids.shape
        check_token_inputs(None, "", input_ids, attention_mask)
        documents = _documents(input_ids, attention_mask, cache)
        farthest = min(config.reach, documents.keys.shape[1] - 1)
        table = jnp.asarray(sinusoids(np.arange(farthest, -1, -1), config.d_model), self.execution.dtype)
        table = copy_per_shard(self.table_dropout(table, deterministic), rows)
        x = self.dropout(math.sqrt(config.d_model) * self.words(input_ids), deterministic)
        x = shard_hidden(x)
        inputs, kept = [x[None]], []

        def body(layer: LongformerDecoderLayer, x: jax.Array, past: KeyValues | None) -> tuple[jax.Array, tuple]:
            x, key_values = layer(x, documents, table, biases=self.biases, past=past, deterministic=deterministic)
            if cache is None:
                return x, (x if output_hidden_states else None, None)
            last = jax.tree.map(lambda each: jnp.einsum("BSNH->BNHS", each)[..., length:], key_values)
            return x, (x if output_hidden_states else None, last)

        with collect(output_attentions) as attentions:
            for layers, (_, numbers) in zip(self.layers, config.runs, strict=True):
                past = None if cache is None else jax.tree.map(lambda each, own=numbers: each[own], cache.key_values)
                x, (states, last) = stack(
                    body, layers, numbers.stop - numbers.start, execution=self.execution, x=x, inputs=past
                )
                inputs.append(states)
                kept.append(last)
        after = None
        if cache is not None:
            joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *kept)
            after = cache.after(joined, documents.queries)
        return SegmentOutput(
            last_hidden_state=self.dropout(x, deterministic),
            cache=after,
            hidden_states=jnp.concatenate(inputs) if output_hidden_states else None,
            attentions=attentions.get(OWN),
        )


def _documents(input_ids: jax.Array, attention_mask: jax.Array | None, cache: KeyValueMemory | None) -> Documents:
    """Return the documents of the tokens of rows and of the cache before them."""
    if cache is None:
        real = jnp.ones_like(input_ids) if attention_mask is None else (attention_mask > 0).astype(jnp.int32)
        return Documents(real, real)
    own = segment_documents(cache, input_ids.shape[1], attention_mask, None)
    return Documents(own, jnp.concatenate([cache.documents, own], axis=1))


class LongformerDecoderForCausalLM(nn.Module):
    """The model with the scores of the next token; the word table is the output layer, with a bias."""

    config: LongformerDecoderConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids: jax.Array, *arguments: Any, **settings: Any) -> SegmentOutput:
        """Take and return the same as `LongformerDecoderModel`, with `scores`."""
        encoder = self.config.module(Purpose.ENCODING, self.execution)
        init = as_bias(nn.initializers.zeros, ("vocab",))
        bias = self.param("output_bias", init, (self.config.vocab_size,))
        outputs = encoder(input_ids, *arguments, **settings)
        return outputs.replace(scores=VocabularyScores(outputs.last_hidden_state, encoder.words.embedding, bias))


def _cache(config: LongformerDecoderConfig, batch: int, capacity: int, execution: Execution) -> KeyValueMemory:
    """Return an empty memory of as many tokens as a head can see, at most the capacity."""
    size = min(config.reach, capacity)
    zeros = jnp.zeros((config.n_layer, batch, config.n_head, config.d_head, size), execution.dtype)
    zeros = nn.with_logical_constraint(zeros, AXES)
    return KeyValueMemory(KeyValues(zeros, zeros), jnp.zeros((batch, size), jnp.int32))


def _parts(config: LongformerDecoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the word table with the vectors u and v, and each layer."""
    layers = (
        ParameterGroup((f"longformer_decoder/layers_{run}",), layer)
        for run, (_, numbers) in enumerate(config.runs)
        for layer in range(numbers.stop - numbers.start)
    )
    return ParameterGroup(("longformer_decoder",)), *layers


SYSTEM = declare(
    System(
        LongformerDecoderConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: LongformerDecoderForCausalLM,
            Purpose.CAUSAL_LM: LongformerDecoderForCausalLM,
            Purpose.ENCODING: LongformerDecoderModel,
            Purpose.EMBEDDING: LongformerDecoderModel,
        },
        name="longformer_decoder",
        template=lambda config: TEXT_ALONE,
        parts=_parts,
        token_table="longformer_decoder/words/embedding",
        cache=_cache,
        packs=False,
    )
)
