"""Reformer: attention to similar tokens and reversible layers (Kitaev et al., ICLR 2020, arXiv 2001.04451;
trax/models/reformer of google/trax).

Two streams begin as the same embedding. Local layers and LSH layers follow each other in the order of `attn_layers`
(models/reformer/attention.py); a layer can be computed again from its output, and so no layer keeps its hidden states
for the backward pass (layers/reversible_stack.py):

    x1 = x2 = words[input_ids] + axial_positions[p]
    L times:  x1 = x1 + attention(norm(x2));  x2 = x2 + feed_forward(norm(x1))
    next token:  softmax(W norm([x1, x2]) + b)

A decoder (`is_decoder`) reads from left to right; otherwise the model is an encoder with a masked language model.

Rows are padded to a multiple of the chunks where they are longer than a chunk. The embedding of a row of a training has
all positions of the axial tables: --data.sequence_length is the product of `axial_pos_shape`.

Deviation: the rotations of the hashes are those of `hash_seed` outside of pretraining, so that the outputs of a row
are always the same. transformers draws others at every call, unless its config has a `hash_seed` for torch.
Deviation: axial tables are initialized as in transformers, with `axial_norm_std`.
"""

import math
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.errors import UserError
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.reversible_stack import Streams, reversible_stack
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs, first_tokens, gather_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.task_heads import ClassificationHead, QuestionAnswering
from plmjax.models.reformer.attention import LocalAttention, LshAttention
from plmjax.models.reformer.axial_positions import AxialPositions
from plmjax.models.reformer.cache import ReformerCache
from plmjax.models.reformer.config import ReformerConfig
from plmjax.models.reformer.hashing import bucket_type

ROW = ("batch", "length", "embed")


@flax.struct.dataclass
class ReformerOutput:
    """The output of a Reformer; fields that a module does not compute are None.

    last_hidden_state: both streams, normalised, [B T 2D].
    hidden_states: both streams before each layer, and `last_hidden_state`, [L+1 B T 2D]; only if requested.
    scores: scores of the next token at every position; only of a causal language model.
    logits: float32, [B T V] or [B P V] of a masked language model, [B labels] of a classifier.
    cache: the given cache, with the tokens of this call.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    scores: TokenScores | None = None
    head_logits: jax.Array | None = None
    cache: ReformerCache | None = None

    @property
    def logits(self) -> jax.Array:
        """The scores as an array, or those of a head."""
        return self.scores.logits() if self.head_logits is None else self.head_logits


class ReformerFeedForward(nn.Module):
    """activation(dropout(x W1 + b1)) W2 + b2, then dropout: [B T D] -> [B T D]."""

    config: ReformerConfig
    execution: Execution

    def setup(self) -> None:
        """Create two projections and dropout."""
        config, dtype = self.config, self.execution.dtype
        init = config.initializer
        self.intermediate = Projection((config.feed_forward_size,), ("embed", "mlp"), init, dtype)
        self.output = Projection((config.hidden_size,), ("mlp", "embed"), init, dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Read all tokens at once."""
        inner = nn.with_logical_constraint(self.intermediate(x), ("batch", "length", "mlp"))
        inner = ACTIVATIONS[self.config.hidden_act](self.dropout(inner, deterministic))
        return self.dropout(self.output(inner), deterministic)


class ReformerLayer(nn.Module):
    """The two functions of a layer: attention, local or LSH, and the feed-forward network; each after a norm."""

    config: ReformerConfig
    execution: Execution
    kind: str
    deterministic: bool

    def setup(self) -> None:
        """Create both functions."""
        config, dtype = self.config, self.execution.dtype
        shared = {
            "features": config.hidden_size,
            "num_heads": config.num_attention_heads,
            "head_size": config.attention_head_size,
            "chunks": config.chunks(self.kind),
            "causal": config.is_decoder,
            "kernel_init": config.initializer,
            "execution": self.execution,
        }
        if self.kind == "local":
            self.attention = LocalAttention(**shared, dropout=config.local_attention_probs_dropout_prob)
        else:
            self.attention = LshAttention(
                **shared,
                dropout=config.lsh_attention_probs_dropout_prob,
                rounds=config.num_hashes,
                buckets=config.num_buckets,
                seed=config.hash_seed or 0,
            )
        self.attention_layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.feed_forward_layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.feed_forward = ReformerFeedForward(config, self.execution)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def attend(
        self, x: jax.Array, documents: jax.Array, layer: jax.Array, buckets: jax.Array | None
    ) -> tuple[jax.Array, Any, jax.Array | None]:
        """Return attention(norm(x)), [B T D], the projected vectors, and the buckets of an LSH layer."""
        x = self.attention_layer_norm(x)
        if self.kind == "local":
            y, vectors = self.attention(x, documents, deterministic=self.deterministic)
            return self.dropout(y, self.deterministic), vectors, None
        y, vectors, buckets = self.attention(x, documents, layer, buckets, deterministic=self.deterministic)
        return self.dropout(y, self.deterministic), vectors, buckets

    def decode_step(
        self, x: jax.Array, cache: ReformerCache, layer: jax.Array, hashing_layer: jax.Array
    ) -> tuple[jax.Array, ReformerCache]:
        """Return attention(norm(x)) of one more token of each row, [B 1 D], and the cache with it."""
        x = self.attention_layer_norm(x)
        if self.kind == "local":
            return self.attention.decode_step(x, cache, layer)
        return self.attention.decode_step(x, cache, layer, hashing_layer)

    def feed(self, x: jax.Array) -> jax.Array:
        """Return feed_forward(norm(x)), [B T D], for all tokens at once or `chunk_size_feed_forward` at a time."""
        size, (rows, length, features) = self.config.chunk_size_feed_forward, x.shape
        if not size or size >= length or self.is_initializing():
            return self.feed_forward(self.feed_forward_layer_norm(x), self.deterministic)

        def of_chunk(layer: ReformerLayer, carry: None, x: jax.Array) -> tuple[None, jax.Array]:
            return carry, layer.feed_forward(layer.feed_forward_layer_norm(x), layer.deterministic)

        padded = jnp.pad(x, ((0, 0), (0, -length % size), (0, 0)))
        chunks = jnp.moveaxis(padded.reshape(rows, -1, size, features), 1, 0)
        each = {"params": False, nn.DenyList("params"): True}
        step = nn.scan(nn.remat(of_chunk, prevent_cse=False), variable_broadcast="params", split_rngs=each)
        _, found = step(self, None, chunks)
        return jnp.moveaxis(found, 0, 1).reshape(rows, -1, features)[:, :length]


class ReformerBlock(nn.Module):
    """The layers of one period, `layer_0`, `layer_1`, ..., as functions of a reversible stack.

    The context is the documents of the tokens, int [B T], and the inputs of a block are the numbers of its layers.
    """

    config: ReformerConfig
    execution: Execution
    deterministic: bool

    def setup(self) -> None:
        """Create the layers."""
        kinds = self.config.period
        self.layer = [ReformerLayer(self.config, self.execution, kind, self.deterministic) for kind in kinds]

    @property
    def functions(self) -> int:
        """Two functions for each layer."""
        return 2 * len(self.config.period)

    def function(
        self, number: int, x: jax.Array, context: jax.Array, inputs: jax.Array, kept: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Compute the attention or the feed-forward network of a layer; keep the buckets of an LSH layer."""
        place, feeds = divmod(number, 2)
        if feeds:
            return self.layer[place].feed(x), None
        y, _, buckets = self.layer[place].attend(x, context, inputs[place], kept)
        return y, buckets

    def read(
        self, streams: Streams, cache: ReformerCache | None, documents: jax.Array, numbers: jax.Array
    ) -> tuple[tuple[Streams, ReformerCache | None], jax.Array]:
        """Return the streams and the cache behind the block, and the streams before every layer, [layers B T 2D].

        A cache takes the first tokens of each row, or one token more.
        """
        (x1, x2), kinds, before = streams, self.config.period, []
        for place, layer in enumerate(self.layer):
            before.append(jnp.concatenate([x1, x2], axis=-1))
            hashing = numbers[0] // len(kinds) * kinds.count("lsh") + kinds[:place].count("lsh")
            if cache is not None and x2.shape[1] == 1:
                y, cache = layer.decode_step(x2, cache, numbers[place], hashing)
            else:
                y, vectors, buckets = layer.attend(x2, documents, numbers[place], None)
                if cache is not None:
                    cache = cache.write(numbers[place], vectors.key, vectors.value)
                    cache = cache if buckets is None else cache.write_buckets(hashing, buckets)
            x1 = x1 + y
            x2 = x2 + layer.feed(x1)
        return ((x1, x2), cache), jnp.stack(before)


class ReformerModel(nn.Module):
    """Embeddings, L reversible layers whose parameters are stacked by period under `layers`, and a norm."""

    config: ReformerConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the tables, dropout and the norm."""
        config, dtype = self.config, self.execution.dtype
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, "vocab", config.initializer)
        self.position_embeddings = AxialPositions(
            config.axial_pos_shape, config.axial_pos_embds_dim, config.axial_norm_std, config.hidden_dropout_prob
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layer_norm = LayerNorm(config.layer_norm_eps, dtype)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cache: ReformerCache | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> ReformerOutput:
        """Read rows of tokens, or with a cache the first tokens of each row or one token more.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            positions: int [B T], from 0; by default 0..T-1, or the positions after the cache.
            segment_ids: int [B T], the document of each token, 0 for padding; not with a cache. Tokens see their own
                document only; the chunks are those of the row.
            cache: the tokens before these, with capacity for T more. Only an empty cache takes several tokens at once.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed. With a collection
                "sampling" the hashes are drawn from it, otherwise from `hash_seed`.
            output_hidden_states: returns the streams before every layer.

        Raises:
            UserError: the rows are longer than the axial tables.
            ValueError: an input's shape does not fit the others', or segments are given with a cache.
        """
        config, length = self.config, input_ids.shape[1]
        others = (attention_mask, positions, segment_ids)
        check_token_inputs(config.longest, config.option("longest"), input_ids, *others)
        if cache is not None and segment_ids is not None:
            raise ValueError(
                "Expected rows of one sequence with a cache, found segment_ids; read them without a cache."
            )
        documents = jnp.ones(input_ids.shape, jnp.int32) if segment_ids is None else segment_ids
        documents = documents if attention_mask is None else documents * (attention_mask > 0)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(length), input_ids.shape)
            positions = positions if cache is None else cache.key_values.positions(documents)
        x = self.dropout(self.word_embeddings(input_ids), deterministic)
        x = nn.with_logical_constraint(x + self.position_embeddings(positions, deterministic), ROW)
        if cache is not None:
            cache = cache.with_mask(documents)
        if cache is None or length > 1:
            added = config.padded_length(length) - length
            x, documents = jnp.pad(x, ((0, 0), (0, added), (0, 0))), jnp.pad(documents, ((0, 0), (0, added)))

        block = ReformerBlock(config, self.execution, deterministic, name="layers")
        repetitions = config.depth // len(config.period)
        numbers, streams, states = jnp.arange(config.depth).reshape(repetitions, -1), (x, x), None
        if cache is None and not output_hidden_states:
            streams = reversible_stack(block, repetitions, self.execution, streams, documents, numbers)
        else:

            def body(block: ReformerBlock, carried: tuple, numbers: jax.Array) -> tuple[tuple, jax.Array | None]:
                carried, states = block.read(*carried, documents, numbers)
                return carried, states if output_hidden_states else None

            (streams, cache), states = stack(body, block, repetitions, self.execution, (streams, cache), numbers)
        x = self.dropout(self.layer_norm(jnp.concatenate(streams, axis=-1)[:, :length]), deterministic)
        x = nn.with_logical_constraint(x, ROW)
        if states is not None:
            states = states.reshape(-1, *states.shape[2:])[:, :, :length].astype(x.dtype)
            states = jnp.concatenate([states, x[None]])
        return ReformerOutput(x, hidden_states=states, cache=None if cache is None else cache.advance(length))


class ReformerForCausalLM(nn.Module):
    """A decoder with the scores of the next token; its output layer has a table of its own and a bias."""

    config: ReformerConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the model and the output layer."""
        _require_decoder(self.config, True, "writes text")
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.output = OutputLayer(self.config)

    def __call__(self, input_ids: jax.Array, *arguments: jax.Array | None, **settings: Any) -> ReformerOutput:
        """Take and return the same as `ReformerModel`, with `scores`."""
        outputs = self.encoder(input_ids, *arguments, **settings)
        return outputs.replace(scores=self.output(outputs.last_hidden_state))


class ReformerForMaskedLM(nn.Module):
    """An encoder with the scores of every token, or of the tokens at `masked_positions`."""

    config: ReformerConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the model and the output layer."""
        _require_decoder(self.config, False, "restores masked tokens")
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.output = OutputLayer(self.config)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> ReformerOutput:
        """Take and return the same as `ReformerModel`, with logits [B T V], or [B P V] at positions int [B P]."""
        outputs = self.encoder(input_ids, **inputs)
        hidden = gather_tokens(outputs.last_hidden_state, masked_positions)
        return outputs.replace(head_logits=self.output(hidden).logits())


class ReformerForSequenceClassification(nn.Module):
    """An encoder with a head of two layers on the first token."""

    config: ReformerConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """Create the model and the head."""
        _require_decoder(self.config, False, "labels texts")
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> ReformerOutput:
        """Take and return the same as `ReformerModel`, with logits [B labels], or [B 1 labels] at `cls_positions`."""
        outputs = self.encoder(input_ids, deterministic=deterministic, **inputs)
        first = first_tokens(outputs.last_hidden_state, cls_positions)
        return outputs.replace(head_logits=self.classifier(first, deterministic))


class OutputLayer(nn.Module):
    """The scores of all tokens, W x + b, with a table of its own [V 2D]."""

    config: ReformerConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> VocabularyScores:
        """Return the scores of hidden states, [B T 2D]."""
        config, shape = self.config, (self.config.vocab_size, 2 * self.config.hidden_size)
        table = self.param("table", nn.with_logical_partitioning(config.initializer, ("vocab", "embed")), shape)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        return VocabularyScores(hidden, table, self.param("bias", zeros, shape[:1]))


def _require_decoder(config: ReformerConfig, expected: bool, purpose: str) -> None:
    """Raise UserError unless the model is a decoder, or an encoder, as a purpose needs."""
    if config.is_decoder != expected:
        raise UserError(
            f"Expected --model.is_decoder {expected} for a Reformer that {purpose}, found {config.is_decoder}; set it."
        )


def _parts(config: ReformerConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, each layer, and the last norm."""
    period = len(config.period)
    layers = (
        ParameterGroup((f"reformer/layers/layer_{layer % period}",), layer // period) for layer in range(config.depth)
    )
    embeddings = ParameterGroup(("reformer/word_embeddings", "reformer/position_embeddings"))
    return embeddings, *layers, ParameterGroup(("reformer/layer_norm",))


def _empty_cache(config: ReformerConfig, batch: int, capacity: int, execution: Execution) -> ReformerCache:
    heads = config.num_attention_heads, config.attention_head_size
    key_values = KeyValueCache.empty(config.depth, batch, capacity, *heads, execution.dtype)
    shape = (config.attn_layers.count("lsh"), batch, heads[0], config.num_hashes, capacity)
    buckets = jnp.full(shape, math.prod(config.num_buckets), bucket_type(config.num_buckets))
    return ReformerCache(key_values, buckets, config.smallest_chunk, config.padding_multiple)


SYSTEM = declare(
    System(
        ReformerConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: ReformerForCausalLM,
            Purpose.WRITING: ReformerForCausalLM,
            Purpose.MASKED_TOKENS: ReformerForMaskedLM,
            Purpose.ENCODING: ReformerModel,
            Purpose.EMBEDDING: ReformerModel,
            Purpose.TEXT_LABELS: ReformerForSequenceClassification,
            Purpose.ANSWERS: QuestionAnswering,
        },
        name="reformer",
        returns=("scores",),
        template=lambda config: TEXT_ALONE if config.is_decoder else Template("cls A sep", "cls A sep B sep"),
        parts=_parts,
        cache=_empty_cache,
        token_table="reformer/word_embeddings/embedding",
        packs=False,
    )
)
