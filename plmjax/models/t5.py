"""T5: a text-to-text transformer (Raffel et al., JMLR 2020, arXiv 1910.10683; the authors' code is mesh_tensorflow).

Every task reads a text and generates a text, and one encoder-decoder does all tasks. Its blocks are those of the
Transformer with these differences (section 2.1). A norm without a bias stands before each sublayer and after each
stack. No layer has a bias. There are no position embeddings. Instead a relative position bias is added to each score:
one number for each head and each bucket of distances between key and query:

    L times, encoder:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
    L times, decoder:  x = x + attention(norm(x), up to each);  x = x + attention(norm(x), encoder);
                       x = x + feed_forward(norm(x))
    score(i, j) = q_i . k_j + b[head, bucket(j - i)]

The biases b belong to a stack and are shared by its layers. Attention to the encoder has no such biases. Scores are not
divided by sqrt(H). Instead the queries have smaller initial weights.

Version 1.0 uses ReLU, and its output layer is the word table, times 1 / sqrt(D). Version 1.1 has a gated feed-forward
network, gelu(x W0) * (x W1), and a separate output layer (google-research/text-to-text-transfer-transformer,
released_checkpoints.md).

Dropout drops the same features of all tokens of a row. In attention it drops the same keys for all queries
(mesh_tensorflow/transformer: `noise_shape` without the length).

Deviation: transformers drops the elements of every token independently.
Deviation: transformers 5 forces the output layer of version 1.1 to be the word table, unless a checkpoint has another.
Deviation: the biases b are initialized as in transformers; mesh_tensorflow uses TensorFlow's default.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, check_ranges
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.attention.relative_positions import RelativePositions, check_buckets
from plmjax.layers.dropout import Dropout
from plmjax.layers.encoder_decoder import EncoderDecoderOutput, decode_layers, group_by_source, project_source
from plmjax.layers.feed_forward import FeedForward, GatedFeedForward, check_activation
from plmjax.layers.normalization import RmsNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import DecoderRows, EncoderRows
from plmjax.layers.stack import stack_states
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.encoder_decoder import (
    EncoderDecoderForConditionalGeneration,
    EncoderDecoderModel,
    LayerSize,
    layers_products,
)


def _layers(each: int) -> dict[str, int]:
    return {"num_layers": each, "num_decoder_layers": each}


_LARGEST = {"d_model": 1024, "d_kv": 128, **_layers(24)}
_VERSION_1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


@dataclasses.dataclass(frozen=True)
class T5Config(ModelConfig):
    """Sizes of a T5, named as in transformers' config.json; the defaults are those of version 1.0's small.

    Arguments override the fields of a named size: `T5Config.small(vocab_size=8192)`.

    Raises:
        UserError: a size out of range, or an unknown feed-forward network.
    """

    vocab_size: int = 32128
    """Vocabulary size: 32,000, 100 sentinels, and 28 that fill the table up."""
    d_model: int = 512
    """Hidden size, D."""
    d_kv: int = 64
    """Size of an attention head, H."""
    d_ff: int = 2048
    """Inner size of the feed-forward network, F."""
    num_layers: int = 6
    """Number of layers of the encoder."""
    num_decoder_layers: int = 6
    """Number of layers of the decoder."""
    num_heads: int = 8
    """Number of attention heads, N."""
    relative_attention_num_buckets: int = 32
    """Number of buckets of distances; half of them for each direction in the encoder."""
    relative_attention_max_distance: int = 128
    """All distances from this one on are in the last bucket."""
    dropout_rate: float = 0.1
    """Dropout rate of embeddings, sublayers, feed-forward activations, attention and the output of each stack."""
    layer_norm_epsilon: float = 1e-6
    """Added to the mean of squares in a norm."""
    initializer_factor: float = 1.0
    """Factor of all initial weights."""
    feed_forward_proj: str = "relu"
    """Feed-forward network: an activation such as relu (version 1.0), or one after "gated-", whose values are
    multiplied by another projection; gated-gelu (version 1.1) is the tanh form.
    """
    tie_word_embeddings: bool = True
    """True if the word table, times 1 / sqrt(D), is the output layer (version 1.0)."""
    pad_token_id: int = 0
    """Padding token id."""
    eos_token_id: int = 1
    """Token id at the end of a text."""
    decoder_start_token_id: int = 0
    """First token id that the decoder reads."""

    field_names: ClassVar[dict[str, str]] = {"width": "d_model", "depth": "num_layers", "end_token": "eos_token_id"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), dropout_rate=FRACTION, initializer_factor=FROM_0)
        check_ranges("model", self, layer_norm_epsilon=ABOVE_0)
        check_buckets(self.relative_attention_num_buckets, self.relative_attention_max_distance)
        check_activation(self.activation)

    small = Size("Version 1.0: 60,506,624 parameters.")
    base = Size("Version 1.0: 222,903,552 parameters.", **_layers(12), d_model=768, d_ff=3072, num_heads=12)
    large = Size("Version 1.0: 737,668,096 parameters.", **_layers(24), d_model=1024, d_ff=4096, num_heads=16)
    three_billion = Size(
        "Version 1.0, published as 3B: 2,851,598,336 parameters.", **_LARGEST, d_ff=16384, num_heads=32
    )
    eleven_billion = Size(
        "Version 1.0, published as 11B: 11,307,321,344 parameters.", **_LARGEST, d_ff=65536, num_heads=128
    )
    small_v1_1 = Size("Version 1.1: 76,961,152 parameters.", **_VERSION_1_1, **_layers(8), d_ff=1024, num_heads=6)
    base_v1_1 = Size(
        "Version 1.1: 247,577,856 parameters.", **_VERSION_1_1, **_layers(12), d_model=768, d_ff=2048, num_heads=12
    )
    large_v1_1 = Size(
        "Version 1.1: 783,150,080 parameters.", **_VERSION_1_1, **_layers(24), d_model=1024, d_ff=2816, num_heads=16
    )
    xl_v1_1 = Size(
        "Version 1.1: 2,849,757,184 parameters.", **_VERSION_1_1, **_layers(24), d_model=2048, d_ff=5120, num_heads=32
    )
    xxl_v1_1 = Size(
        "Version 1.1: 11,135,332,352 parameters.", **_VERSION_1_1, **_layers(24), d_model=4096, d_ff=10240, num_heads=64
    )
    tiny = Size(
        "Version 1.0: two layers of 128 in each stack.", **_layers(2), d_model=128, d_kv=32, d_ff=512, num_heads=4
    )

    @property
    def gated(self) -> bool:
        """True if the activations are multiplied by a second projection."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        """The activation of the feed-forward network; that of gated-gelu is the tanh form."""
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else self.feed_forward_proj.removeprefix("gated-")

    def normal(self, inputs: int) -> Initializer:
        """Return a normal initializer, not truncated, of standard deviation `initializer_factor` / sqrt(inputs)."""
        return nn.initializers.normal(self.initializer_factor / math.sqrt(inputs))

    def norm(self, execution: Execution) -> RmsNorm:
        """Return the norm before a sublayer and after a stack."""
        return RmsNorm(self.layer_norm_epsilon, execution.dtype)

    def row_dropout(self) -> Dropout:
        """Return a dropout of [B T ...] that drops the same features of all tokens of a row."""
        return Dropout(self.dropout_rate, together=(1,))

    def feed_forward(self, execution: Execution) -> FeedForward:
        """Return a feed-forward network without biases."""
        network = T5GatedFeedForward if self.gated else T5FeedForward
        inits = {"kernel_init": self.normal(self.d_model), "output_init": self.normal(self.d_ff)}
        settings = {"execution": execution, "dropout": self.dropout_rate, "use_bias": False}
        return network(self.d_ff, self.activation, **inits, **settings)

    def attention(self, execution: Execution) -> MultiHeadAttention:
        """Return an attention without biases or scale.

        The initial weights of its queries have a factor of 1 / sqrt(H). The layers apply dropout to its values.
        """
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            dropout=0.0,
            kernel_init=self.normal(self.d_model),
            execution=execution,
            head_size=self.d_kv,
            scale=1.0,
            use_bias=False,
            query_init=self.normal(self.d_model * self.d_kv),
            output_init=self.normal(self.num_heads * self.d_kv),
        )

    def relative_positions(self, execution: Execution, *, both_sides: bool) -> RelativePositions:
        """Return the relative position biases of a stack."""
        buckets, largest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        init = self.normal(self.d_model)
        return RelativePositions(both_sides, buckets, largest, self.num_heads, init, execution)

    def with_depth(self, layers: int) -> Self:
        return dataclasses.replace(self, num_layers=layers, num_decoder_layers=layers)

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout_rate=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        They are the FLOPs of both stacks, whose gated feed-forward networks have three matrices, and 6 D V per
        prediction.
        """
        width, inner = self.d_model, self.num_heads * self.d_kv
        feed_forward = (3 if self.gated else 2) * width * self.d_ff
        encoder = LayerSize(self.num_layers, width, inner, feed_forward)
        decoder = LayerSize(self.num_decoder_layers, width, inner, feed_forward)
        head = width * self.vocab_size * predictions
        return 6.0 * batch_size * (layers_products(encoder, decoder, sequence_length, predictions) + head)


class T5FeedForward(FeedForward):
    """activation(x W0) W: [B T D] -> [B T D]. Dropout drops the same inner features of all tokens of a row."""

    def drop(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return Dropout(self.dropout, together=(1,))(x, deterministic)


class T5GatedFeedForward(T5FeedForward, GatedFeedForward):
    """(activation(x W0) * (x W1)) W: [B T D] -> [B T D], of version 1.1."""


class T5EncoderLayer(nn.Module):
    """Self-attention, then feed-forward; each after a norm, with dropout and the residual sum after it."""

    config: T5Config
    execution: Execution

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.attention, self.attention_norm = config.attention(execution), config.norm(execution)
        self.feed_forward, self.feed_forward_norm = config.feed_forward(execution), config.norm(execution)
        self.dropout = config.row_dropout()
        # All queries share one mask [B N 1 S] of the probabilities [B N T S]. Applied to the values [B S N H] instead,
        # the mask gives the same product of probabilities and values.
        self.value_dropout = Dropout(config.dropout_rate, together=(3,))

    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, terms: tuple[BiasTerm, ...], *, deterministic: bool
    ) -> jax.Array:
        """Map [B T D] to [B T D]."""
        attend = functools.partial(self.attention.attend, deterministic=deterministic)
        feed_forward = functools.partial(self.feed_forward, deterministic=deterministic)
        dropout = functools.partial(self.dropout, deterministic=deterministic)

        y = self.attention_norm(x)
        key_values = self.drop_values(self.attention.key_values(y), deterministic)
        x = shard_hidden(x + dropout(attend(y, key_values, mask_terms, terms)))
        return shard_hidden(x + dropout(feed_forward(self.feed_forward_norm(x))))

    def drop_values(self, key_values: KeyValues, deterministic: bool) -> KeyValues:
        """Drop attention probabilities with one mask for all queries, which is a dropout of the values."""
        return key_values.replace(values=self.value_dropout(key_values.values, deterministic))


class T5DecoderLayer(T5EncoderLayer):
    """Self-attention up to each token, attention to the encoder's output, then feed-forward, as in the encoder."""

    def setup(self) -> None:
        super().setup()
        self.cross_attention = self.config.attention(self.execution)
        self.cross_attention_norm = self.config.norm(self.execution)

    def key_values(self, encoded: jax.Array) -> KeyValues:
        """Project the encoder's output [B S D] to the keys and values of this layer."""
        return self.cross_attention.key_values(encoded)

    def __call__(
        self,
        x: jax.Array,
        mask_terms: MaskTerms,
        terms: tuple[BiasTerm, ...],
        *,
        source: KeyValues,
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

        y = self.attention_norm(x)
        key_values, cache = with_past(self.attention.key_values(y), cache, layer)
        key_values = self.drop_values(key_values, deterministic)
        x = shard_hidden(x + dropout(attend(y, key_values, mask_terms, terms)))
        y = group_by_source(self.cross_attention_norm(x), source)
        source = self.drop_values(source, deterministic)
        context = attend_to_source(y, source, source_mask).reshape(x.shape)
        x = shard_hidden(x + dropout(context))
        x = shard_hidden(x + dropout(feed_forward(self.feed_forward_norm(x))))
        return x, cache


class T5Encoder(nn.Module):
    """Layers whose parameters are stacked [L ...] under `layers`; every token sees the whole sequence."""

    config: T5Config
    execution: Execution

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.layers = T5EncoderLayer(config, execution)
        self.relative_positions = config.relative_positions(execution, both_sides=True)
        self.dropout, self.norm = config.row_dropout(), config.norm(execution)

    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, *, deterministic: bool, output_hidden_states: bool = False
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map embeddings [B S D] to [B S D] and, if requested, to the hidden states [L+1 B S D].

        The last hidden state is the output.
        """
        x = self.dropout(x, deterministic)
        terms = (self.relative_positions(mask_terms, x.shape[1], x.shape[1]),)

        def apply(layer: T5EncoderLayer, x: jax.Array, _: None) -> jax.Array:
            return layer(x, mask_terms, terms, deterministic=deterministic)

        depth = self.config.num_layers
        last, states = stack_states(
            apply, self.layers, depth, execution=self.execution, x=x, output_hidden_states=output_hidden_states
        )
        last = self.dropout(self.norm(last), deterministic)
        return last, jnp.concatenate([states[:-1], last[None]]) if output_hidden_states else None


class T5Decoder(nn.Module):
    """Layers like those of the encoder; each token sees the tokens up to itself, and the encoder's output."""

    config: T5Config
    execution: Execution

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.layers = T5DecoderLayer(config, execution)
        self.relative_positions = config.relative_positions(execution, both_sides=False)
        self.dropout, self.norm = config.row_dropout(), config.norm(execution)

    def key_values(self, encoded: jax.Array) -> KeyValues:
        """Project the encoder's output [B S D] to the keys and values of every layer, [L B S N H]."""
        return project_source(self.layers, self.config.num_decoder_layers, self.execution, encoded)

    def __call__(
        self,
        x: jax.Array,
        mask_terms: MaskTerms,
        source: jax.Array | KeyValues,
        *,
        source_mask: MaskTerms,
        cache: KeyValueCache | None = None,
        deterministic: bool,
        output_hidden_states: bool = False,
    ) -> EncoderDecoderOutput:
        """Decode embeddings [B T D], with the encoder's output [B S D] or the result of `key_values`."""
        x = self.dropout(x, deterministic)
        keys = x.shape[1] if cache is None else cache.capacity
        terms = (self.relative_positions(mask_terms, x.shape[1], keys),)

        def apply(layer: T5DecoderLayer, x: jax.Array, source: KeyValues, *, cache: Any, number: jax.Array) -> tuple:
            return layer(
                x,
                mask_terms,
                terms,
                source=source,
                source_mask=source_mask,
                cache=cache,
                layer=number,
                deterministic=deterministic,
            )

        numbers = jnp.arange(self.config.num_decoder_layers)
        last, cache, states = decode_layers(
            apply,
            self.layers,
            numbers,
            execution=self.execution,
            x=x,
            source=source,
            cache=cache,
            output_hidden_states=output_hidden_states,
        )
        last = self.dropout(self.norm(last), deterministic)
        states = jnp.concatenate([states[:-1], last[None]]) if output_hidden_states else None
        return EncoderDecoderOutput(last, states, cache=None if cache is None else cache.advance(x.shape[1]))


class T5Model(EncoderDecoderModel):
    """The word table, which both stacks share, the encoder and the decoder.

    Given positions have no effect; only their shapes are checked. The distance between two tokens of a sequence is the
    distance between their places in the row.
    """

    config: T5Config

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.shared = Embedding(config.vocab_size, config.d_model, "vocab", config.normal(1), dtype)
        self.encoder = T5Encoder(config, self.execution)
        self.decoder = T5Decoder(config, self.execution)

    def _embed(self, ids: jax.Array) -> jax.Array:
        return shard_hidden(self.shared(ids))

    def _encode(self, input_ids: jax.Array, rows: EncoderRows, **flags: bool) -> tuple[jax.Array, jax.Array | None]:
        return self.encoder(self._embed(input_ids), rows.mask_terms, **flags)

    def _key_values(self, encoded: jax.Array) -> KeyValues:
        return self.decoder.key_values(encoded)

    def _decode(
        self,
        input_ids: jax.Array,
        rows: DecoderRows,
        source: jax.Array | KeyValues,
        source_mask: MaskTerms,
        **flags: bool,
    ) -> EncoderDecoderOutput:
        y, given = self._embed(input_ids), {"source_mask": source_mask, "cache": rows.cache}
        return self.decoder(y, rows.mask_terms, source, **given, **flags)


class T5ForConditionalGeneration(EncoderDecoderForConditionalGeneration):
    """The model, named `t5`, with the scores of the next token."""

    config: T5Config

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        super().setup()
        if not config.tie_word_embeddings:
            init = config.normal(config.d_model)
            self.lm_head = Embedding(config.vocab_size, config.d_model, "vocab", init, dtype)

    def _add_scores(self, output: EncoderDecoderOutput) -> EncoderDecoderOutput:
        hidden = output.last_hidden_state
        if not self.config.tie_word_embeddings:
            return output.replace(scores=VocabularyScores(hidden, self.lm_head.embedding))
        hidden = hidden * jnp.asarray(self.config.d_model**-0.5, hidden.dtype)
        return output.replace(scores=VocabularyScores(hidden, self.model.shared.embedding))


def _cache(config: T5Config, batch: int, capacity: int, execution: Execution) -> KeyValueCache:
    """Return an empty cache of the decoder's keys and values."""
    return KeyValueCache.empty(
        config.num_decoder_layers, batch, capacity, heads=config.num_heads, size=config.d_kv, dtype=execution.dtype
    )


def _parts(config: T5Config) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the word table, then the groups of each stack.

    The groups of a stack are the relative position biases, each layer, and the last norm.
    """
    groups = [ParameterGroup(("t5/shared",))]
    for side, layers in (("encoder", config.num_layers), ("decoder", config.num_decoder_layers)):
        groups.append(ParameterGroup((f"t5/{side}/relative_positions",)))
        groups += [ParameterGroup((f"t5/{side}/layers",), layer) for layer in range(layers)]
        groups.append(ParameterGroup((f"t5/{side}/norm",)))
    return tuple(groups)


SYSTEM = declare(
    System(
        T5Config,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: T5ForConditionalGeneration,
            Purpose.CAUSAL_LM: T5ForConditionalGeneration,
            Purpose.SEQ2SEQ: T5ForConditionalGeneration,
            Purpose.ENCODING: T5Model,
        },
        name="t5",
        # A text and the end token; the texts of a task follow a prefix (section 2.4).
        template=lambda config: Template("A end", "A B end", "last"),
        parts=_parts,
        cache=_cache,
    )
)
