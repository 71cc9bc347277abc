"""XLNet: generalized autoregressive pretraining.

Sources: Yang et al., NeurIPS 2019, arXiv 1906.08237; zihangdai/xlnet modeling.py.

A language model predicts the tokens of a text in a random order, and each from all tokens that precede it in this
order. So it reads both sides of a token, and no token is replaced by a mask. Tokens stay at their positions in the
text, and only attention follows the order. A hidden state that predicts a token must not depend on this token, but a
hidden state that later tokens attend to must. Hence two streams with the same parameters (section 2.3):

    content  h_i = words[input_ids_i]     h_i attends to h_j for all j with rank_j <= rank_i
    query    g_i = mask embedding         g_i attends to h_j for all j with rank_j <  rank_i
    L times, both:  x = norm(x + attention(x, [memory, h]));     x = norm(x + feed_forward(x))
    token i:        softmax(words . g_i + b)

Only the last tokens of the order are predicted (partial prediction, section 2.3), so g has few rows. Keys and values
include a memory: the inputs of the layer for earlier tokens, without gradient (section 2.4, as in Transformer-XL). A
score is a sum of three parts, each with its own learned bias of the query, in every layer:

    score(i, j) = ((q_i + u) . k_j + (q_i + v) . r(i - j) + (q_i + w) . s(i, j)) / sqrt(H)

r is a projection of sinusoids of the distance. s is one of two vectors, for a key of the query's segment or of another
segment (relative segment encodings, section 2.5). A row that is read backwards has negated distances. Downstream there
is one stream without an order, and the last token, [CLS], represents the text (plmjax/models/xlnet/heads.py).

In training dropout draws a mask of the sinusoids for each row, as in the released code and in transformers. So the
sinusoids are projected for each row. This takes a tenth of the FLOPs of the published pretraining, and a seventh of the
FLOPs of fine-tuning with rows of 128 tokens.

Deviation: `ff_activation` defaults to GELU's tanh form, as in the released pretraining; transformers' default is the
exact one.
Deviation: a memory has a mask of the tokens that exist, and only those are visible. In the released code the memory
before the first row is zeros, which are visible; `XlnetMemory` with a mask of ones is the same.
Deviation: a query that sees no key, such as the first one of an order without a memory, attends to the tokens that the
order hides, weighted by their scores, and not to padding, because each condition adds BERT's negative number. The
released code adds a number so large that the scores vanish, and all keys, also padding, have the same weight. No row of
the pretraining has such a query.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.attentions import Attentions
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import ABOVE_0, FRACTION, FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.relative_shift import distances
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import FeedForward, check_activation
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.sinusoids import sinusoids
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.task_heads import TOKEN_HEADS
from plmjax.models.xlnet.attention import QUERY_STREAM, Inputs, OrItself, Precedes, TwoStreamAttention
from plmjax.models.xlnet.heads import (
    XlnetForMultipleChoice,
    XlnetForQuestionAnswering,
    XlnetForSequenceClassification,
)


def _sizes(layers: int, hidden: int, heads: int) -> dict[str, int]:
    return {"n_layer": layers, "d_model": hidden, "n_head": heads, "d_inner": 4 * hidden}


@dataclasses.dataclass(frozen=True)
class XlnetConfig(ModelConfig):
    """Sizes of an XLNet, named as in transformers' config.json; the defaults are XLNet-Base.

    Arguments override the fields of a named size: `XlnetConfig.base(vocab_size=8192)`.

    Raises:
        UserError: sizes that do not fit each other, or an unknown activation.
    """

    vocab_size: int = 32000
    """Vocabulary size."""
    d_model: int = 768
    """Hidden size, D."""
    n_layer: int = 12
    """Number of layers, L."""
    n_head: int = 12
    """Number of attention heads, N."""
    d_inner: int = 3072
    """Inner size of the feed-forward network, F."""
    ff_activation: str = "gelu_new"
    """Activation: gelu_new (tanh form), gelu (exact) or relu."""
    dropout: float = 0.1
    """Dropout rate of embeddings, positions, attention probabilities and sublayers."""
    summary_last_dropout: float = 0.1
    """Dropout rate of the summary of a text, before a classifier."""
    clamp_len: int = -1
    """Largest distance between tokens; longer ones count as this one. -1: no limit."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalisation."""
    start_n_top: int = 5
    """Number of starts of an answer that are followed."""
    end_n_top: int = 5
    """Number of ends that are followed for each start."""
    pad_token_id: int = 5
    """Padding token id; transformers needs it, attention reads the mask instead."""
    bos_token_id: int | None = 1
    """Token id of <s>; transformers needs it, nothing here reads it."""
    eos_token_id: int | None = 2
    """Token id of </s>; as `bos_token_id`."""

    field_names: ClassVar[dict[str, str]] = {
        "width": "d_model",
        "depth": "n_layer",
        "padding_token": "pad_token_id",
    }

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "n_layer", "d_inner", "start_n_top", "end_n_top")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), initializer_range=FROM_0)
        check_ranges("model", self, dropout=FRACTION, summary_last_dropout=FRACTION)
        check_ranges("model", self, layer_norm_eps=ABOVE_0)
        if self.n_head < 1 or self.d_model % self.n_head:
            raise UserError(
                f"Expected a hidden size that divides by the heads, found {self.d_model} and {self.n_head} heads; "
                f"change --model.d_model or --model.n_head."
            )
        check_activation(self.ff_activation)

    base = Size(
        "XLNet-Base, cased English: 116,718,336 parameters, 116,750,336 with its output bias.", **_sizes(12, 768, 12)
    )
    large = Size(
        "XLNet-Large, cased English: 360,268,800 parameters, 360,300,800 with its output bias.", **_sizes(24, 1024, 16)
    )
    tiny = Size("Two layers of 128; not a published size.", **_sizes(2, 128, 2))

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of embeddings, positions, probabilities and sublayers."""
        return dataclasses.replace(self, dropout=rate)

    @property
    def initializer(self) -> Initializer:
        """Normal distribution."""
        return nn.initializers.normal(self.initializer_range)

    def distance_table(self, queries: int, keys: int) -> jax.Array:
        """Return the sinusoids of the distances of `queries` queries from `keys` keys, float32 [2 R D].

        The first half is for rows in their own order, the second for rows that are read backwards.
        """
        found = distances(queries, keys, keys - queries, later=True)
        if self.clamp_len > 0:
            found = found.clip(-self.clamp_len, self.clamp_len)
        return jnp.stack([sinusoids(found, self.d_model), sinusoids(-found, self.d_model)])

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int, memory: int = 0) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward), matrix products only.

        With T tokens and M tokens of memory in a row there are S = T + M keys and R = T + S - 1 distances. A row takes
        6 L (D^2 (2 T + 2 S + R) + 2 T D F + T D (3 S + T)) and, with P = `predictions` rows of the query stream,
        6 L (P (2 D^2 + 2 D F + 2 T D) + T D (3 S + T)) and 6 P D V more.
        """
        size, inner, tokens, keys = self.d_model, self.d_inner, sequence_length, sequence_length + memory
        scores = tokens * size * (3 * keys + tokens)
        projections = size**2 * (2 * tokens + 2 * keys + tokens + keys - 1)
        row = self.n_layer * (projections + 2 * tokens * size * inner + scores)
        if predictions:
            stream = predictions * (2 * size**2 + 2 * size * inner + 2 * tokens * size) + scores
            row += self.n_layer * stream + predictions * size * self.vocab_size
        return 6.0 * batch_size * row


@flax.struct.dataclass
class XlnetMemory:
    """The inputs of every layer for M tokens before a row.

    states: [L B M D]. mask: [B M], 1 for tokens that exist.
    """

    states: jax.Array
    mask: jax.Array

    @classmethod
    def empty(cls, config: XlnetConfig, batch_size: int, length: int, dtype: jnp.dtype = jnp.float32) -> Self:
        """Return a memory of `length` tokens that do not exist, for states in `dtype`; `length` may be 0."""
        states = jnp.zeros((config.n_layer, batch_size, length, config.d_model), dtype)
        return cls(states, jnp.zeros((batch_size, length), jnp.int32))


@flax.struct.dataclass
class XlnetOutput(Attentions):
    """The output of the modules of XLNet; fields that a module does not compute are None.

    last_hidden_state: [B T D] of the content stream, or [B P D] of the query stream for P predictions.
    hidden_states: [L+1 B T D] of the content stream, the embeddings first; only if requested.
    memory: the memory after the row, if there was one before it.
    scores: scores of the predicted tokens; only of a language model.
    label_logits: float32 [B labels] (or [B K labels]) of texts, or [B C] (or [B C K]) of choices.
    attentions: of the content stream.
    query_attentions: of the query stream, float32 [L B N P S]; only if requested.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    memory: XlnetMemory | None = None
    scores: TokenScores | None = None
    label_logits: jax.Array | None = None
    query_attentions: jax.Array | None = None

    @property
    def logits(self) -> jax.Array | None:
        """The scores as an array, float32 [B T V] or [B P V]; without scores, `label_logits`."""
        return self.label_logits if self.scores is None else self.scores.logits()


class XlnetLayer(nn.Module):
    """Relative attention, then feed-forward, the same for both streams."""

    config: XlnetConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(
        self, content: jax.Array, query: jax.Array | None, memory: jax.Array | None, inputs: Inputs
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map [B T D], [B P D] and a memory [B M D] to both streams, [B T D] and [B P D]."""
        config, execution, still = self.config, self.execution, self.deterministic
        norm = functools.partial(LayerNorm, config.layer_norm_eps, execution.dtype)
        attention_norm, feed_forward_norm = norm(name="attention_layer_norm"), norm(name="feed_forward_layer_norm")
        made = {"kernel_init": config.initializer, "execution": execution, "dropout": config.dropout}
        attention = TwoStreamAttention(config.d_model, config.n_head, **made, use_bias=False, name="attention")
        feed_forward = FeedForward(config.d_inner, config.ff_activation, **made, name="feed_forward")
        dropout = functools.partial(Dropout(config.dropout), deterministic=still)

        def after(x: jax.Array, attended: jax.Array) -> jax.Array:
            x = shard_hidden(attention_norm(x + dropout(attended)))
            return shard_hidden(feed_forward_norm(x + dropout(feed_forward(x, deterministic=still))))

        source = content if memory is None else jnp.concatenate([memory.astype(execution.dtype), content], axis=1)
        key_values, terms = attention.key_values(source), attention.terms(inputs, content.shape[1])
        attended = attention.attend(content, key_values, inputs.content, terms, deterministic=still)
        if query is not None:
            attended_by_query = attention.predict(
                query, inputs.targets, key_values, mask_terms=inputs.query, terms=terms, deterministic=still
            )
            query = after(query, attended_by_query)
        return after(content, attended), query


class XlnetModel(nn.Module):
    """Embeddings and L layers whose parameters are stacked [L ...] under `layers`."""

    config: XlnetConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.word_embeddings = Embedding(config.vocab_size, config.d_model, "vocab", config.initializer, dtype)
        init = nn.with_logical_partitioning(config.initializer, ("embed",))
        self.mask_embedding = self.param("mask_embedding", init, (config.d_model,))
        self.dropout = Dropout(config.dropout)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        ranks: jax.Array | None = None,
        target_positions: jax.Array | None = None,
        backwards: jax.Array | None = None,
        memory: XlnetMemory | None = None,
        reuse_length: int | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> XlnetOutput:
        """Read rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            token_type_ids: int [B T], the segment of each token; without it scores do not depend on segments. Tokens
                of a memory have segment 0.
            positions: int [B T]; they have no effect, only distances have.
            segment_ids: int [B T], the packed sequence of each token, 0 for padding; not with a memory.
            ranks: int [B T] from 0, the place of each token in the order of prediction. Tokens of equal rank see each
                other, but do not predict each other. Without ranks every token sees every token.
            target_positions: int [B P], the tokens to predict, each at most once; T or more for no token. Without it
                there is no query stream.
            backwards: bool [B], true for rows that are read from their end; none by default.
            memory: the tokens before the rows.
            reuse_length: number of first tokens of the row that enter the memory; by default all.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`),
                of both streams, S = M + T for a memory of M tokens.

        Raises:
            ValueError: an input's shape does not fit the others', or segments are given with a memory.
        """
        config, execution, dtype = self.config, self.execution, self.execution.dtype
        check_token_inputs(None, "", input_ids, attention_mask, token_type_ids, positions, segment_ids, ranks)
        if memory is not None and segment_ids is not None:
            raise ValueError("Expected rows of one sequence with a memory, found segment_ids.")
        batch, length = input_ids.shape
        before = 0 if memory is None else memory.mask.shape[1]
        dropout = functools.partial(self.dropout, deterministic=deterministic)
        table = config.distance_table(length, before + length)
        table = table[:1] if backwards is None else jnp.where(backwards[:, None, None], table[1], table[0])
        if not deterministic:  # each row draws its own mask
            table = jnp.broadcast_to(table, (batch, *table.shape[-2:]))
        targets = None
        if target_positions is not None:
            targets = jax.nn.one_hot(target_positions, length, dtype=dtype)
            query = jnp.broadcast_to(self.mask_embedding.astype(dtype), (batch, targets.shape[1], config.d_model))
        inputs = Inputs(
            dropout(table.astype(dtype)),
            None if token_type_ids is None else (token_type_ids, _after(before, token_type_ids, 0)),
            *_mask_terms(attention_mask, segment_ids, ranks, memory=memory, input_ids=input_ids),
            targets,
        )

        def body(layer: XlnetLayer, streams: tuple[jax.Array, Any], states: jax.Array | None) -> tuple[Any, Any]:
            content = streams[0]
            kept = None if states is None else _next_memory(states, content, reuse_length)
            after = layer(*streams, states, inputs)
            return after, (kept, after[0] if output_hidden_states else None)

        content = dropout(self.word_embeddings(input_ids))
        content = shard_hidden(content)
        streams = content, None if targets is None else dropout(query)
        layers = XlnetLayer(config, execution, deterministic, name="layers")
        states = None if memory is None else jax.lax.stop_gradient(memory.states)
        with collect(output_attentions) as attentions:
            last, (kept, hidden) = stack(body, layers, config.n_layer, execution=execution, x=streams, inputs=states)
        if memory is not None:
            mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
            memory = XlnetMemory(kept, _next_memory(memory.mask, mask, reuse_length))
        return XlnetOutput(
            last_hidden_state=dropout(last[0] if targets is None else last[1]),
            hidden_states=jnp.concatenate([content[None], hidden]) if output_hidden_states else None,
            memory=memory,
            attentions=attentions.get(OWN),
            query_attentions=attentions.get(QUERY_STREAM),
        )


def _next_memory(before: jax.Array, row: jax.Array, reuse_length: int | None) -> jax.Array:
    """Return the memory after a row, with unchanged length: [B M ...], [B T ...] -> [B M ...]."""
    both = jnp.concatenate([before, row[:, :reuse_length].astype(before.dtype)], axis=1)
    return jax.lax.stop_gradient(both[:, both.shape[1] - before.shape[1] :])


def _after(before: int, x: jax.Array, value: int) -> jax.Array:
    """Pad int [B T] on the left with `before` columns of `value`."""
    return jnp.pad(x, ((0, 0), (before, 0)), constant_values=value)


def _mask_terms(
    attention_mask: jax.Array | None,
    segment_ids: jax.Array | None,
    ranks: jax.Array | None,
    *,
    memory: XlnetMemory | None,
    input_ids: jax.Array,
) -> tuple[MaskTerms, MaskTerms]:
    """Return the mask terms of the content stream and of the query stream; arguments as in the model."""
    before = 0 if memory is None else memory.mask.shape[1]
    mask = attention_mask
    if memory is not None:
        mask = jnp.concatenate([memory.mask, jnp.ones_like(input_ids) if mask is None else mask], axis=1)
    query = MaskTerms.of_rows(mask, segment_ids).replace(query_offset=before)
    content = query.replace(conditions=tuple(map(OrItself, query.conditions)))
    if ranks is None:
        return content, query
    keys = _after(before, ranks, -1)
    return content.also(Precedes(keys, ranks + 1)), query.also(Precedes(keys, ranks))


class XlnetForPreTraining(nn.Module):
    """The model, under the name of its system, and the scores of the predicted tokens from the word table."""

    config: XlnetConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        zeros = as_bias(nn.initializers.zeros_init(), ("vocab",))
        self.output_bias = self.param("output_bias", zeros, (self.config.vocab_size,))

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> XlnetOutput:
        """Take and return the same as `XlnetModel`, with scores."""
        output = self.encoder(input_ids, **inputs)
        table = self.encoder.word_embeddings.embedding
        return output.replace(scores=VocabularyScores(output.last_hidden_state, table, self.output_bias))


def _parts(config: XlnetConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings and each layer."""
    layers = (ParameterGroup(("xlnet/layers",), layer) for layer in range(config.depth))
    return ParameterGroup(("xlnet",)), *layers


TEMPLATE = Template("A sep cls:2", "A sep B:1 sep:1 cls:2", "last", padding="left")
"""The rows of a task: [CLS] is the last token, also of the padded row, and has a segment of its own."""

SYSTEM = declare(
    System(
        XlnetConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: XlnetForPreTraining,
            Purpose.ENCODING: XlnetModel,
            Purpose.EMBEDDING: XlnetModel,
            Purpose.SEQUENCE_CLASSIFICATION: XlnetForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: XlnetForMultipleChoice,
            **TOKEN_HEADS,
            Purpose.ANSWER_SEARCH: XlnetForQuestionAnswering,
        },
        name="xlnet",
        template=lambda config: TEMPLATE,
        parts=_parts,
        token_table="xlnet/word_embeddings/embedding",
    )
)
