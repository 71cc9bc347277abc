"""Adaptive attention span (Sukhbaatar et al., ACL 2019, arXiv 1905.07799; facebookresearch/adaptive-span), and the
all-attention network with persistent vectors (Sukhbaatar et al. 2019, arXiv 1907.01470).

A decoder reads a text in segments and remembers the input of each layer, as Transformer-XL does. Every head learns how
far it looks back. Here d = 1 .. S is the distance from a query back to a key, z the fraction of the longest span S that
a head learns, and R the length of a ramp in tokens:

    weights(d) = m(d) exp(score(d)) / sum over d' of m(d') exp(score(d'))
    m(d) = clamp((R + z S + 1 - d) / R, 0, 1)
    score(d) = (q . k_d + q . p_d) / sqrt(H)

All heads and layers share one vector p_d for each distance. A token does not attend to itself; its own vector reaches
the layer's output through the residual sum. The loss has a term for the spans: S z of each head, averaged over the
heads and summed over the layers (plmjax/objectives/adaptive_span.py). A layer computes

    x = norm(x + attention(queries x, keys and values of [memory, x]))
    x = norm(x + feed_forward(x))

In an all-attention network there is no feed-forward network. Each head has P persistent keys and values instead, to
which every token attends besides the text, in the same softmax (`persistent_size`).

Before a text the memory holds zeros, which are attended to. Only the last `computed_span` tokens of a memory are read,
which saves computation if all spans are short. A span longer than this is cut off.

Deviation: nothing is added to the sum over m(d') exp(score(d')); the released code computes the sum after a softmax and
adds 1e-8.
Deviation: biases begin at 0; in the released code they are uniform, as torch initializes linear layers.
"""

import dataclasses
import math
from typing import ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerm, MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias, as_scale
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import TEXT_ALONE
from plmjax.errors import FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.relative_shift import PositionalScores, copy_per_shard
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.kinks import clamp
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.segments import Memory, SegmentOutput, segment_documents

LAYER_NORM_EPSILON = 1e-5
SMALLEST = 2.0**-80
"""Number added to every mask. It is the weight of a key whose mask is 0, and too small to change a sum in float32.

The derivative of the logarithm, 1 / SMALLEST, makes up for this small weight. So the gradient of a mask of 0 is exact,
and a span can grow.
"""


@dataclasses.dataclass(frozen=True)
class AdaptiveSpanConfig(ModelConfig):
    """Sizes of a model with adaptive spans; the defaults are those of `enwik8_base`.

    Raises:
        UserError: sizes that do not fit each other.
    """

    vocab_size: int = 205
    """Vocabulary size."""
    d_model: int = 512
    """Hidden size, D."""
    n_layer: int = 12
    """Number of layers, L."""
    n_head: int = 8
    """Number of attention heads, N."""
    d_inner: int = 2048
    """Inner size of the feed-forward network, F; not used with persistent vectors."""
    attn_span: int = 8192
    """Longest span that a head can learn, S."""
    computed_span: int | None = None
    """Number of earlier tokens that are read; None reads the longest span. A run sets it."""
    ramp: int = 32
    """Number of tokens over which a mask falls from 1 to 0, R."""
    initial_fraction: float = 0.0
    """Fraction of the longest span that every head has at first."""
    persistent_size: int = 0
    """Number of persistent vectors of each head, P; above 0 they replace the feed-forward network."""
    dropout: float = 0.3
    """Dropout rate of attention probabilities and of inner features."""

    field_names: ClassVar[dict[str, str]] = {"width": "d_model", "depth": "n_layer"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "n_layer", "n_head", "d_inner", "attn_span", "ramp")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), persistent_size=FROM_0)
        check_ranges("model", self, dropout=FRACTION)
        if not 0 <= self.initial_fraction <= 1:
            raise UserError(f"Expected --model.initial_fraction from 0 to 1, found {self.initial_fraction}; change it.")
        if self.d_model % self.n_head:
            raise UserError(
                f"Expected features that divide by the heads, found {self.d_model} and {self.n_head} heads; change "
                f"--model.d_model or --model.n_head."
            )
        if not 1 <= self.span <= self.attn_span:
            raise UserError(
                f"Expected --model.computed_span from 1 to {self.attn_span}, found {self.computed_span}; change it or "
                f"--model.attn_span."
            )

    enwik8_base = Size("38,538,541 parameters.")
    enwik8_large = Size("208,910,221 parameters.", d_model=768, n_layer=24, d_inner=4096, dropout=0.4)
    enwik8_small = Size("6,480,621 parameters.", d_model=256, n_layer=8, n_head=4, d_inner=1024, attn_span=1024)
    all_attention = Size("114,017,773 parameters, without feed-forward networks.", n_layer=36, persistent_size=2048)
    tiny = Size("Two layers of 128.", d_model=128, n_layer=2, n_head=2, d_inner=512, attn_span=256, dropout=0.0)

    @property
    def span(self) -> int:
        """Number of earlier tokens that are read."""
        return self.attn_span if self.computed_span is None else self.computed_span

    @property
    def head_size(self) -> int:
        """Size of a head, H."""
        return self.d_model // self.n_head

    @property
    def initializer(self) -> Initializer:
        """Uniform distribution within 1 / sqrt(inputs), as torch initializes linear layers."""
        return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

    @property
    def heads_initializer(self) -> Initializer:
        """Like `initializer`, for the kernels [D N H] of queries, keys and values."""
        return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=0, out_axis=(1, 2))

    @property
    def output_projection_initializer(self) -> Initializer:
        """Like `initializer`, for the kernel [N H D] after attention."""
        return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=(0, 1), out_axis=2)

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout=rate)

    def memory(self, batch: int, dtype: jnp.dtype = jnp.float32) -> Memory:
        """Return the memory before a text, zeros that are attended to."""
        hidden = jnp.zeros((self.n_layer, batch, self.attn_span, self.d_model), dtype)
        return Memory(hidden, jnp.ones((batch, self.attn_span), jnp.int32))

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only. Tokens of the memory have keys and
        values, but no queries.
        """
        length, seen, size = sequence_length, self.span + sequence_length, self.d_model
        # The last term is the additional column of the shift (plmjax/layers/attention/relative_shift.py).
        layer = (2 * length + 2 * seen) * size**2 + length * 3 * seen * size + length * size
        if self.persistent_size:
            layer += 3 * length * self.persistent_size * size
        else:
            layer += 2 * length * size * self.d_inner
        return 6.0 * batch_size * (self.n_layer * layer + predictions * size * self.vocab_size)


@flax.struct.dataclass
class WithinSpan(MaskTerm):
    """The key is a persistent vector, or 1 to `span` tokens before the query in the same document.

    query_documents: int [B T], the document number of each token.
    key_documents: int [B S], the document number of each key; 0 for padding and for empty places of the memory, any
        number for a persistent vector.
    span: maximum distance in tokens.
    persistent: number of persistent vectors, which are the first keys.
    """

    query_documents: jax.Array = axes("batch", "queries")
    key_documents: jax.Array = axes("batch", "keys")
    span: int = flax.struct.field(pytree_node=False)
    persistent: int = flax.struct.field(pytree_node=False)

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        distance = query_positions[..., None] - key_positions
        own, others = self.query_documents[:, :, None], self.key_documents[:, None, :]
        near = (distance >= 1) & (distance <= self.span) & (own == others) & (others > 0)
        return near | (key_positions < self.persistent)


@flax.struct.dataclass
class SoftSpan(BiasTerm):
    """The logarithm of the mask m(d) of each head.

    spans: z S of each head, float32 [B N 1 1]. Every row has a copy: if rows shared the spans, devices would sum a
        gradient [N T S].
    ramp: R.
    persistent: number of persistent vectors, which are the first keys and are not masked.
    """

    spans: jax.Array = axes("batch", "heads", None, None)
    ramp: int = flax.struct.field(pytree_node=False)
    persistent: int = flax.struct.field(pytree_node=False)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term, float32 [B N T S]; log `SMALLEST` where the mask is 0."""
        distance = query_positions[..., None] - key_positions
        mask = clamp((self.ramp + self.spans + 1 - distance) / self.ramp, 0, 1)
        return jnp.log(jnp.where(key_positions < self.persistent, 1, mask) + SMALLEST)


class AdaptiveSpanLayer(nn.Module):
    """Attention to the memory and to the segment, then feed-forward unless there are persistent vectors."""

    config: AdaptiveSpanConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, mask_terms: MaskTerms, positions: jax.Array) -> jax.Array:
        """Map [B T D] to [B T D].

        Args:
            memory: [B M D], the layer's inputs at the M tokens before the segment.
            positions: [G R H], the vectors of R distances, one copy for each of G shards of the batch
                (`copy_per_shard`), in the order of `PositionalScores`.
        """
        config, execution, dtype = self.config, self.execution, self.execution.dtype
        attention = MultiHeadAttention(
            config.d_model,
            config.n_head,
            config.dropout,
            config.heads_initializer,
            execution,
            use_bias=False,
            output_init=config.output_projection_initializer,
            name="attention",
        )
        attention_norm = LayerNorm(LAYER_NORM_EPSILON, dtype, name="attention_layer_norm")
        fractions = self.param(
            "span_shares",
            as_scale(nn.initializers.constant(config.initial_fraction), ("heads",)),
            (config.n_head,),
        )

        source = jnp.concatenate([jax.lax.stop_gradient(memory).astype(dtype), x], axis=1)
        key_values = self._with_persistent(attention.key_values(source))
        table = jnp.broadcast_to(positions[:, :, None], (*positions.shape[:2], config.n_head, config.head_size))
        spans = jnp.broadcast_to(fractions[:, None, None] * config.attn_span, (len(x), config.n_head, 1, 1))
        spans = nn.with_logical_constraint(spans, ("batch", "heads", None, None))
        terms = (
            PositionalScores(None, table, x.shape[1], self.execution.kernels),
            SoftSpan(spans, config.ramp, config.persistent_size),
        )
        y = attention.attend(x, key_values, mask_terms, terms, deterministic=self.deterministic)
        x = shard_hidden(attention_norm(x + y))
        if config.persistent_size:
            return x
        sizes, init = (config.d_inner, "relu"), config.initializer
        feed_forward = FeedForward(*sizes, init, execution, dropout=config.dropout, name="feed_forward")
        feed_forward_norm = LayerNorm(LAYER_NORM_EPSILON, dtype, name="feed_forward_layer_norm")
        y = feed_forward(x, deterministic=self.deterministic)
        return shard_hidden(feed_forward_norm(x + y))

    def _with_persistent(self, key_values: KeyValues) -> KeyValues:
        """Put the persistent keys and values of each head before those of the text, [B S N H] each.

        The parameters are the keys divided by sqrt(H) and the values divided by sqrt(P), as in the released
        persistent_memory.py.
        """
        config, count = self.config, self.config.persistent_size
        if not count:
            return key_values
        shape, names = (count, config.n_head, config.head_size), (None, "heads", "head")
        found = []
        for name, scale, text in (
            ("persistent_keys", config.head_size, key_values.keys),
            ("persistent_values", count, key_values.values),
        ):
            init = nn.with_logical_partitioning(nn.initializers.normal(scale**-0.5), names)
            own = (math.sqrt(scale) * self.param(name, init, shape)).astype(text.dtype)
            found.append(jnp.concatenate([jnp.broadcast_to(own, (len(text), *shape)), text], axis=1))
        return KeyValues(*found)


class AdaptiveSpanModel(nn.Module):
    """Embeddings, and L layers whose parameters are stacked [L ...] under `layers`."""

    config: AdaptiveSpanConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, init = self.config, nn.initializers.normal(1.0)
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", init, self.execution.dtype)
        names, shape = (None, "head"), (config.attn_span, config.head_size)
        self.position_vectors = self.param("position_vectors", nn.with_logical_partitioning(init, names), shape)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        cache: Memory | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SegmentOutput:
        """Read a segment of each row.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 0 for tokens that no token attends to.
            cache: the memory of the previous segments; by default the memory before a text.
            deterministic: disables dropout.
            output_hidden_states: returns the outputs of all layers.
            output_attentions: returns the weights of attention of all layers (`plmjax.contracts.attentions`).
                S is P + M + T: the persistent vectors, the M tokens of `span` before the segment, and the segment.

        Raises:
            ValueError: the token ids and the mask do not have one shape [B T].
        """
        config, (rows, length) = self.config, input_ids.shape
        check_token_inputs(None, "", input_ids, attention_mask)
        memory = config.memory(rows) if cache is None else cache
        past, persistent = config.span, config.persistent_size
        documents = segment_documents(memory, length, attention_mask, None)
        keys = jnp.concatenate([memory.documents[:, config.attn_span - past :], documents], axis=1)
        keys = jnp.pad(keys, ((0, 0), (persistent, 0)))
        mask_terms = MaskTerms((WithinSpan(documents, keys, config.span, persistent),), query_offset=persistent + past)
        x = shard_hidden(self.words(input_ids))
        positions = copy_per_shard(self._distances(length, persistent + past).astype(self.execution.dtype), rows)

        def body(layer: AdaptiveSpanLayer, x: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
            return layer(x, memory, mask_terms, positions), x

        layers = AdaptiveSpanLayer(config, self.execution, deterministic, name="layers")
        read = memory.hidden[:, :, config.attn_span - past :]
        with collect(output_attentions) as attentions:
            x, inputs = stack(body, layers, config.n_layer, execution=self.execution, x=x, inputs=read)
        return SegmentOutput(
            last_hidden_state=x,
            cache=None if cache is None else memory.after(inputs, documents),
            hidden_states=jnp.concatenate([inputs, x[None]]) if output_hidden_states else None,
            attentions=attentions.get(OWN),
        )

    def _distances(self, queries: int, before: int) -> jax.Array:
        """Return the vectors of the distances before + queries - 1, ..., 1, 0, float32 [R H].

        The parameters begin with the longest distance. The vector of the distance 0, and of a distance beyond the span,
        is 0: such a key is hidden, or it is a persistent vector, which has no position.
        """
        span = self.config.span
        vectors = self.position_vectors[self.config.attn_span - span :]
        rows = before + queries  # the last is of distance 0
        return jnp.pad(vectors[max(0, span + 1 - rows) :], ((max(0, rows - 1 - span), 1), (0, 0)))


class AdaptiveSpanForCausalLM(nn.Module):
    """The model with the scores of the next token; its output layer has a separate table and a bias."""

    config: AdaptiveSpanConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config = self.config
        self.encoder = config.module(Purpose.ENCODING, self.execution)
        bound = config.d_model**-0.5

        def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        table, bias = ("vocab", "embed"), ("vocab",)
        self.output = self.param(
            "output", nn.with_logical_partitioning(init, table), (config.vocab_size, config.d_model)
        )
        self.output_bias = self.param("output_bias", as_bias(nn.initializers.zeros, bias), (config.vocab_size,))

    def __call__(self, input_ids: jax.Array, *arguments: jax.Array | None, **settings: object) -> SegmentOutput:
        """Take and return the same as `AdaptiveSpanModel`, with `scores`."""
        outputs = self.encoder(input_ids, *arguments, **settings)
        scores = VocabularyScores(outputs.last_hidden_state, self.output, self.output_bias)
        return outputs.replace(scores=scores)


def _parts(config: AdaptiveSpanConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings with the vectors of distances, and each layer."""
    layers = (ParameterGroup(("adaptive_span/layers",), layer) for layer in range(config.n_layer))
    return ParameterGroup(("adaptive_span",)), *layers


SYSTEM = declare(
    System(
        AdaptiveSpanConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: AdaptiveSpanForCausalLM,
            Purpose.CAUSAL_LM: AdaptiveSpanForCausalLM,
            Purpose.ENCODING: AdaptiveSpanModel,
            Purpose.EMBEDDING: AdaptiveSpanModel,
        },
        name="adaptive_span",
        template=lambda config: TEXT_ALONE,
        parts=_parts,
        token_table="adaptive_span/words/embedding",
        cache=lambda config, batch, capacity, execution: config.memory(batch),  # its size is fixed
        packs=False,
    )
)
