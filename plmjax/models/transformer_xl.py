"""Transformer-XL: attentive language models beyond a fixed-length context.

Sources: Dai et al., ACL 2019, arXiv 1901.02860; kimiyoung/transformer-xl pytorch/mem_transformer.py.

A decoder reads a text in segments. Each layer also attends to its inputs at the tokens of earlier segments, the memory,
through which no gradient passes. With L layers and a memory of M tokens, information reaches a token from up to L M
tokens before it:

    m = the last M inputs of the layer, without gradient
    x = norm(x + attention(queries x, keys and values [m, x], up to each))
    x = norm(x + feed_forward(x))
    next token:  adaptive softmax of x (Grave et al. 2016)

The same token has another position in each segment, so only distances count (section 3.3). With a projection r of the
sinusoids of each distance, and two vectors u and v that all layers share,

    score(i, j) = (q_i . k_j + q_i . r[i - j] + u . k_j + v . r[i - j]) / sqrt(H)

(plmjax/layers/attention/relative_shift.py). The memory may be longer in evaluation than in training. Then distances are
clamped to the largest one that was learned, and every token sees the same number of tokens (`same_length`).

The memory before a text is empty in the released PyTorch code (`initial_memory` "empty"). In its TensorFlow code and in
transformers it is full of zeros that are attended to ("zeros"). The entries of the clusters in the head are in the
order of transformers (plmjax/layers/words/adaptive_scores.py).

Deviation: memories have a fixed length here, and empty places are hidden, because shapes are static.
Deviation: the released code carries the memory from one document to the next; here this is a setting of the objective
(plmjax/objectives/transformer_xl.py).
Deviation: scales of normalisation begin with 1; the released code draws them from N(1, 0.02).
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

from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Causal, MaskTerms, SameSegment, Window
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import TEXT_ALONE
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_choice, check_ranges
from plmjax.layers.attention.cache import AXES
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.relative_shift import ContentBias, PositionalScores, copy_per_shard, distances
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.sinusoids import sinusoids
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.adaptive_words import AdaptiveEmbedding, AdaptiveSoftmax, Clusters
from plmjax.models.families.segments import KeyValueMemory, Memory, SegmentOutput, segment_documents

INITIAL_MEMORIES = ("empty", "zeros")
PROJECTION_DEVIATION = 0.01
"""Standard deviation of the initial projections of embeddings (train.py, `proj_init_std`)."""


@dataclasses.dataclass(frozen=True)
class TransformerXlConfig(ModelConfig):
    """Sizes of a Transformer-XL, named as in transformers' config.json; the defaults are those of `enwik8_base`.

    Raises:
        UserError: sizes that do not fit each other.
    """

    vocab_size: int = 204
    """Vocabulary size."""
    cutoffs: tuple[int, ...] = ()
    """First token id of each cluster of the vocabulary but the first; without any there is one cluster."""
    div_val: int = 1
    """Factor by which the embeddings of a cluster are smaller than those of the cluster before it."""
    d_embed: int = 512
    """Size of the first cluster's embeddings, E."""
    d_model: int = 512
    """Hidden size, D."""
    n_layer: int = 12
    """Number of layers, L."""
    n_head: int = 8
    """Number of attention heads, N."""
    d_head: int = 64
    """Size of a head, H."""
    d_inner: int = 2048
    """Inner size of the feed-forward network, F."""
    mem_len: int = 512
    """Number of tokens that every layer remembers, M."""
    clamp_len: int = -1
    """Largest distance that is told apart; below 1 all distances are."""
    same_length: bool = False
    """True if every token sees `mem_len` tokens, itself included; otherwise the last ones of a segment see more."""
    initial_memory: str = "empty"
    """Memory before a text: empty, or zeros that are attended to."""
    pre_lnorm: bool = False
    """True to normalise the input of each sublayer; otherwise the sum after it."""
    untie_r: bool = False
    """True if every layer has its own u and v."""
    tie_word_embeddings: bool = True
    """True if the tables of the embedding are the output layer."""
    proj_share_all_but_first: bool = True
    """True if the projections of the embedding are those of the output layer too, except for the first cluster's."""
    dropout: float = 0.1
    """Dropout rate of embeddings, sinusoids, sublayers, inner features and the last layer's output."""
    dropatt: float = 0.0
    """Dropout rate of attention probabilities."""
    layer_norm_epsilon: float = 1e-5
    """Added to the variance in layer normalisation."""
    init_std: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""

    field_names: ClassVar[dict[str, str]] = {"width": "d_model", "depth": "n_layer"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "div_val", "d_embed", "d_model", "n_layer", "n_head", "d_head", "d_inner")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), mem_len=FROM_0, init_std=FROM_0)
        check_ranges("model", self, dropout=FRACTION, dropatt=FRACTION)
        check_choice("--model.initial_memory", self.initial_memory, INITIAL_MEMORIES)
        if self.same_length and not self.mem_len:
            raise UserError("Expected --model.mem_len of at least 1 with --model.same_length, found 0; change one.")
        check_ranges("model", self, layer_norm_epsilon=ABOVE_0)
        _ = self.clusters

    enwik8_base = Size("41,055,436 parameters.")
    enwik8_large = Size(
        "277,231,820 parameters.",
        d_embed=1024,
        d_model=1024,
        n_layer=24,
        d_head=128,
        d_inner=3072,
        mem_len=768,
        dropout=0.15,
        dropatt=0.15,
    )
    text8_base = Size("40,964,635 parameters: that of enwik8 for 27 characters.", vocab_size=27)
    text8_large = Size(
        "277,050,395 parameters: that of enwik8 for 27 characters.", **(enwik8_large.fields | {"vocab_size": 27})
    )
    wikitext103_base = Size(
        "151,107,538 parameters.",
        vocab_size=267_735,
        cutoffs=(20_000, 40_000, 200_000),
        d_embed=410,
        d_model=410,
        n_layer=16,
        n_head=10,
        d_head=41,
        d_inner=2100,
        mem_len=150,
    )
    wikitext103_large = Size(
        "285,170,506 parameters.",
        vocab_size=267_735,
        cutoffs=(20_000, 40_000, 200_000),
        div_val=4,
        d_embed=1024,
        d_model=1024,
        n_layer=18,
        n_head=16,
        d_inner=4096,
        mem_len=384,
        dropout=0.2,
        dropatt=0.2,
    )
    tiny = Size("Two layers of 128.", d_embed=128, d_model=128, n_layer=2, n_head=2, d_inner=512, mem_len=128)

    @property
    def clusters(self) -> Clusters:
        """The clusters of the vocabulary."""
        return Clusters(self.vocab_size, self.cutoffs, self.d_model, self.d_embed, self.div_val)

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.init_std)

    @property
    def projection_initializer(self) -> Initializer:
        """Initializer of the projections of embeddings."""
        return nn.initializers.normal(PROJECTION_DEVIATION)

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout=rate, dropatt=rate)

    def memory(self, batch: int, dtype: jnp.dtype = jnp.float32) -> Memory:
        """Return the memory before a text, of hidden states in `dtype`."""
        hidden = jnp.zeros((self.n_layer, batch, self.mem_len, self.d_model), dtype)
        filled = jnp.full((batch, self.mem_len), int(self.initial_memory == "zeros"), jnp.int32)
        return Memory(hidden, filled)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only. The memory takes part in the keys, the
        values and the scores, and has no queries. Tails of the vocabulary are scored at their capacity.
        """
        rows, length, seen = batch_size, sequence_length, self.mem_len + sequence_length
        size, heads = self.d_model, self.n_head * self.d_head
        layer = rows * (2 * length + 2 * seen) * size * heads + seen * size * heads  # q, o, k, v, r
        layer += rows * (length * (3 * seen + 1) + seen) * heads + rows * length * 2 * size * self.d_inner
        words = self.clusters.multiplications(rows * length, rows * predictions)
        return 6.0 * (self.n_layer * layer + words)


class TransformerXlLayer(nn.Module):
    """Attention to the memory and to the segment, then feed-forward."""

    config: TransformerXlConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | KeyValues,
        mask_terms: MaskTerms,
        *,
        table: jax.Array,
        biases: tuple[jax.Array, jax.Array] | None,
    ) -> tuple[jax.Array, KeyValues]:
        """Map [B T D] to [B T D], and return the keys and values of memory and segment, [B M+T N H].

        Args:
            memory: the layer's inputs at M earlier tokens, [B M D], or their keys and values, [B N H M].
            table: the sinusoids of all distances, [G R D] for G shards of the rows.
            biases: u and v, float32 [N H]; None for a layer with its own.
        """
        config, execution, dtype = self.config, self.execution, self.execution.dtype
        init, heads = config.initializer, (config.n_head, config.d_head)
        attention = MultiHeadAttention(
            config.d_model,
            config.n_head,
            config.dropatt,
            init,
            execution,
            head_size=config.d_head,
            use_bias=False,
            name="attention",
        )
        relative = Projection(heads, ("embed", "heads", "head"), init, dtype, use_bias=False, name="relative")
        sizes = config.d_inner, "relu"
        feed_forward = FeedForward(*sizes, init, execution, dropout=config.dropout, name="feed_forward")
        norm = functools.partial(LayerNorm, config.layer_norm_epsilon, dtype)
        attention_norm, feed_forward_norm = norm(name="attention_layer_norm"), norm(name="feed_forward_layer_norm")
        dropout = functools.partial(Dropout(config.dropout), deterministic=self.deterministic)
        u, v = position_biases(self, config) if biases is None else biases

        def normalised(norm: LayerNorm, x: jax.Array) -> jax.Array:
            return norm(x) if config.pre_lnorm else x

        def summed(norm: LayerNorm, x: jax.Array, y: jax.Array) -> jax.Array:
            y = x + dropout(y)
            return shard_hidden(y if config.pre_lnorm else norm(y))

        if isinstance(memory, KeyValues):
            queries = normalised(attention_norm, x)
            key_values = jax.tree.map(_with_past, memory, attention.key_values(queries))
        else:
            past = jax.lax.stop_gradient(memory).astype(dtype)
            source = normalised(attention_norm, jnp.concatenate([past, x], axis=1))
            queries, key_values = source[:, memory.shape[1] :], attention.key_values(source)
        scale = 1 / math.sqrt(config.d_head)
        terms: tuple[BiasTerm, ...] = (
            ContentBias(u * scale),
            PositionalScores(v * scale, relative(table), x.shape[1], execution.kernels),
        )
        y = attention.attend(queries, key_values, mask_terms, terms, deterministic=self.deterministic)
        x = summed(attention_norm, x, y)
        y = feed_forward(normalised(feed_forward_norm, x), deterministic=self.deterministic)
        return summed(feed_forward_norm, x, y), key_values


def _with_past(past: jax.Array, new: jax.Array) -> jax.Array:
    """Concatenate keys or values [B N H M] and [B T N H] to [B M+T N H]."""
    joined = jnp.concatenate([past, jnp.einsum("BTNH->BNHT", new)], axis=-1)
    return jnp.einsum("BNHS->BSNH", joined)


class TransformerXlModel(nn.Module):
    """Adaptive embeddings, and L layers whose parameters are stacked [L ...] under `layers`."""

    config: TransformerXlConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config = self.config
        init = config.initializer, config.projection_initializer
        self.words = AdaptiveEmbedding(config.clusters, *init, self.execution.dtype)
        self.dropout = Dropout(config.dropout)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        starts: jax.Array | None = None,
        cache: Memory | KeyValueMemory | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SegmentOutput:
        """Read a segment of each row.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 0 for tokens that nobody sees.
            starts: bool [B T], true for tokens that begin a document and see nothing before it; none by default.
            cache: the memory of earlier segments; None without any.
            deterministic: disables dropout.
            output_hidden_states: returns the outputs of all layers.
            output_attentions: returns the weights of attention of all layers (`plmjax.contracts.attentions`). S is M +
                T with a memory of M tokens.
        """
        config, (rows, length) = self.config, input_ids.shape
        check_token_inputs(None, "", input_ids, attention_mask)
        memory = cache or Memory(jnp.zeros((config.n_layer, rows, 0, config.d_model)), jnp.zeros((rows, 0), jnp.int32))
        past, written = memory.documents.shape[1], isinstance(memory, KeyValueMemory)
        documents = segment_documents(memory, length, attention_mask, starts)
        seen = SameSegment(documents, jnp.concatenate([memory.documents, documents], axis=1))
        conditions = (seen, Causal(), *([Window(past - 1, 0)] if config.same_length and past else []))
        mask_terms = MaskTerms(conditions, query_offset=past)

        apart = distances(length, past + length, past, later=False)
        table = sinusoids(np.minimum(apart, config.clamp_len) if config.clamp_len > 0 else apart, config.d_model)
        table = Dropout(config.dropout, axes=())(jnp.asarray(table, self.execution.dtype), deterministic)
        table = copy_per_shard(table, rows)
        x = math.sqrt(config.d_model) * self.words(input_ids)
        x = shard_hidden(self.dropout(x, deterministic))
        biases = None if config.untie_r else position_biases(self, config)

        def body(layer: TransformerXlLayer, x: jax.Array, memory: jax.Array | KeyValues) -> tuple[jax.Array, Any]:
            if not written:
                return layer(x, memory, mask_terms, table=table, biases=biases)[0], x
            after, key_values = layer(x, memory, mask_terms, table=table, biases=biases)
            return after, jax.tree.map(lambda each: jnp.einsum("BSNH->BNHS", each)[..., length:], key_values)

        layers = TransformerXlLayer(config, self.execution, deterministic, name="layers")
        remembered = memory.key_values if written else memory.hidden
        with collect(output_attentions) as attentions:
            x, outputs = stack(body, layers, config.n_layer, execution=self.execution, x=x, inputs=remembered)
        x = self.dropout(x, deterministic)
        return SegmentOutput(
            last_hidden_state=x,
            cache=None if cache is None else memory.after(outputs, documents),
            hidden_states=jnp.concatenate([outputs, x[None]]) if output_hidden_states else None,
            attentions=attentions.get(OWN),
        )


def position_biases(module: nn.Module, config: TransformerXlConfig) -> tuple[jax.Array, jax.Array]:
    """Return the parameters u and v, float32 [N H]."""
    init, shape = as_bias(config.initializer, ("heads", "head")), (config.n_head, config.d_head)
    return module.param("content_bias", init, shape), module.param("position_bias", init, shape)


class TransformerXlForCausalLM(nn.Module):
    """The model with the scores of the next token."""

    config: TransformerXlConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids: jax.Array, *arguments: jax.Array | None, **settings: object) -> SegmentOutput:
        """Take and return the same as `TransformerXlModel`, with `scores`."""
        config = self.config
        encoder = config.module(Purpose.ENCODING, self.execution)
        softmax = AdaptiveSoftmax(
            config.clusters,
            config.initializer,
            config.projection_initializer,
            config.tie_word_embeddings,
            config.proj_share_all_but_first,
            name="softmax",
        )
        outputs = encoder(input_ids, *arguments, **settings)
        return outputs.replace(scores=softmax(outputs.last_hidden_state, encoder.words))


def _cache(config: TransformerXlConfig, batch: int, capacity: int, execution: Execution) -> Cache:
    """Return the memory before a text, of the same size for any capacity.

    It has keys and values. With `pre_lnorm` and an initial memory of zeros it has the inputs of layers instead: the
    keys of normalised zeros depend on the parameters.
    """
    memory = config.memory(batch)
    if config.pre_lnorm and config.initial_memory == "zeros":
        return memory
    shape = (config.n_layer, batch, config.n_head, config.d_head, config.mem_len)
    zeros = nn.with_logical_constraint(jnp.zeros(shape, execution.dtype), AXES)
    return KeyValueMemory(KeyValues(zeros, zeros), memory.documents)


def _parts(config: TransformerXlConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings with the vectors u and v, and each layer."""
    layers = (ParameterGroup(("transformer_xl/layers",), layer) for layer in range(config.n_layer))
    return ParameterGroup(("transformer_xl",)), *layers


def _token_vectors(params: dict[str, jax.Array]) -> jax.Array:
    """Return the embeddings of all tokens, [V D]: the table of each cluster times its projection."""
    tables = [params[f"{PLACE}/table_{i}"] for i in range(sum(path.startswith(f"{PLACE}/table_") for path in params))]
    kernels = [params.get(f"{PLACE}/projection_{i}") for i in range(len(tables))]
    if kernels[0] is None:
        return jnp.concatenate(tables)
    return jnp.concatenate(
        [table @ (kernels[0] if own is None else own) for table, own in zip(tables, kernels, strict=True)]
    )


PLACE = "transformer_xl/words"
SYSTEM = declare(
    System(
        TransformerXlConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: TransformerXlForCausalLM,
            Purpose.CAUSAL_LM: TransformerXlForCausalLM,
            Purpose.ENCODING: TransformerXlModel,
            Purpose.EMBEDDING: TransformerXlModel,
        },
        name="transformer_xl",
        template=lambda config: TEXT_ALONE,
        parts=_parts,
        token_vectors=_token_vectors,
        cache=_cache,
        packs=False,
    )
)
