"""CoVe: learned in translation, contextualized word vectors (McCann et al., NeurIPS 2017, arXiv 1708.00107;
salesforce/cove OpenNMT-py/onmt and cove/encoder.py).

A translation model is trained, and its encoder is kept. That encoder, the MT-LSTM, reads the fixed embeddings w of
words in both directions (section 3.1). A task reads its output for each word besides the word's embedding (section 4):

    CoVe(w) = MT-LSTM(w)          the task reads [w ; CoVe(w)]

The decoder generates the translation z one word at a time (section 3.2). Its input includes the previous attentional
state, so that it knows the positions it has attended to. It attends to all states H of the encoder (Luong et al. 2015,
arXiv 1508.04025):

    h_t = LSTM([z_{t-1} ; s_{t-1}], h_{t-1})                  begins with the last states of both directions, s_0 = 0
    a_t = softmax(H (W h_t))                                  "general" attention; "dot" has no W
    s_t = tanh(V [H^T a_t ; h_t])
    p(z_t) = softmax(U s_t + b)

The embeddings of the source are initialized to zero, and then loaded from a file such as GloVe's. The embedding of a
word that is not in the file stays zero. The embeddings are not trained if the experiment freezes them
(`--optimizer.frozen cove/words`).

Dropout is applied where the released code has it: to the embeddings of words, between the encoder's layers and to its
output, to the input of every cell of the decoder, and to s_t before it is used or fed. The released code applies it
twice to both inputs of the first cell, the word and s. Here it is applied once, at the combined rate.

Deviation: the released code attends to padding in training; here no token sees padding.
Deviation: both languages share one vocabulary, with an embedding table for each side, and sources end with the end
token, as in the other translation models here.
Deviation: a row holds one pair, since the decoder begins with the last state of a row's source.
"""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.attentions import EncoderDecoderAttentions
from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_0, FROM_1, check_choice, check_ranges
from plmjax.layers.attention.recording import CROSS, collect, record_layers, wanted
from plmjax.layers.dropout import Dropout
from plmjax.layers.encoder_decoder import check_segments
from plmjax.layers.initializers import uniform
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.recurrent.lstm import GATES, BidirectionalLstm, Lstm, LstmState
from plmjax.layers.recurrent.luong_attention import LuongAttention
from plmjax.layers.recurrent.masks import recurrent_masks, visible_tokens
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.task_heads import QuestionAnswering

ATTENTIONS = ("general", "dot")
ENCODER = "cove"


@dataclasses.dataclass(frozen=True)
class CoveConfig(ModelConfig):
    """Sizes of the translation model; the defaults are the published ones."""

    vocab_size: int = 50_000
    """Vocabulary size, for the words of both languages."""
    vector_size: int = 300
    """Embedding size on each side, E."""
    hidden_size: int = 300
    """Hidden size of the encoder's cell in each direction, H; the decoder's is 2 H."""
    num_layers: int = 2
    """Number of layers of each side, L."""
    attention: str = "general"
    """Score function of the decoder's attention to the encoder: general, with a matrix, or dot."""
    dropout: float = 0.2
    """Dropout rate of words, between layers, and of the outputs of both sides."""
    initializer_range: float = 0.1
    """All initial values except the source's embeddings are uniform between minus this value and this value."""
    decoder_start_token_id: int = 2
    """First token id of a target."""

    field_names: ClassVar[dict[str, str]] = {"depth": "num_layers"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "vector_size", "hidden_size", "num_layers")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), dropout=FRACTION, initializer_range=FROM_0)
        check_choice("--model.attention", self.attention, ATTENTIONS)

    original = Size(
        "3,609,600 parameters in the encoder and 7,569,600 in the decoder, without words and the output layer."
    )
    tiny = Size(
        "Vectors of 100 numbers, cells of 64 in each direction.", vocab_size=8192, vector_size=100, hidden_size=64
    )

    @property
    def width(self) -> int:
        """Hidden size of a word, both directions together, D."""
        return 2 * self.hidden_size

    @property
    def token_width(self) -> int:
        return self.vector_size

    @property
    def initializer(self) -> Initializer:
        """Uniform initializer, for the decoder's words, and for all kernels and biases."""
        return uniform(self.initializer_range)

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward), matrix products only.

        A layer with cells of size C and inputs of size I takes 24 C (I + C) per token and direction. For each token of
        the target, attention takes 6 (3 D^2 + 2 S D), or 6 (2 D^2 + 2 S D) for "dot", and the output layer 6 D V.
        """
        size, below = self.hidden_size, (self.vector_size, *(self.width,) * (self.num_layers - 1))
        encoder = sum(2 * GATES * size * (inputs + size) for inputs in below)
        inputs = (self.vector_size + self.width, *(self.width,) * (self.num_layers - 1))
        decoder = sum(GATES * self.width * (given + self.width) for given in inputs)
        attention = (3 if self.attention == "general" else 2) * self.width**2 + 2 * sequence_length * self.width
        target = decoder + attention + self.width * self.vocab_size
        return 6.0 * batch_size * (sequence_length * encoder + predictions * target)


@flax.struct.dataclass
class EncoderOutput:
    """The output of the MT-LSTM.

    last_hidden_state: [B S D], CoVe: the last layer's output, without dropout.
    hidden_states: the words' embeddings [B S E], then the output [B S D] of every layer; None unless requested.
    states: states of both directions of every layer, after the last token that each direction reads.
    """

    last_hidden_state: jax.Array
    hidden_states: tuple[jax.Array, ...] | None
    states: tuple[tuple[LstmState, LstmState], ...]


class MtLstm(nn.Module):
    """The encoder: `words`, float32 [V E], and bidirectional layers with two biases, as in torch."""

    config: CoveConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Read the texts of every row, each independently.

        Args:
            input_ids: int [B S].
            attention_mask: [B S], the padding mask, 0 for tokens that are not read; they leave the states unchanged.
            token_type_ids: int [B S], 0 in the first text of a pair and 1 in the second.
            positions: int [B S]; an LSTM does not need positions, so only the shape is checked.
            segment_ids: int [B S], the packed sequence of each token, 0 for padding.
            deterministic: disables dropout.
            output_hidden_states: returns the embeddings of words and the outputs of all layers.

        Raises:
            ValueError: the inputs do not all have the shape [B S].
        """
        check_token_inputs(None, "", input_ids, attention_mask, token_type_ids, positions, segment_ids)
        config, dtype = self.config, self.execution.dtype
        sizes = (config.vocab_size, config.vector_size, "vocab", nn.initializers.zeros, dtype)
        words = shard_hidden(Embedding(*sizes, name="words")(input_ids))
        reads = recurrent_masks(attention_mask, segment_ids, token_type_ids)
        dropout, layers, states = Dropout(config.dropout), [words], []
        for layer in range(config.num_layers):
            lstm = BidirectionalLstm(
                config.hidden_size,
                config.initializer,
                bias_init=config.initializer,
                recurrent_bias=True,
                dtype=dtype,
                name=f"layer_{layer}",
            )
            y, state = lstm(dropout(layers[-1], deterministic), **reads)
            layers.append(y)
            states.append(state)
        return EncoderOutput(layers[-1], tuple(layers) if output_hidden_states else None, tuple(states))


@flax.struct.dataclass
class EncodedSource:
    """The encoded source, the input of the decoder.

    encoded: [B S D], the encoder's output after dropout.
    attention_mask: bool [B S], true at tokens that are attended to.
    states: initial state of each cell of the decoder, [B D].
    """

    encoded: jax.Array
    attention_mask: jax.Array
    states: tuple[LstmState, ...]


@flax.struct.dataclass
class DecoderState(Cache):
    """The state of the decoder after a token.

    cells: the states of the decoder's cells.
    fed: [B D], the attentional state, an input of the next step.
    """

    cells: tuple[LstmState, ...]
    fed: jax.Array


@flax.struct.dataclass
class TranslationOutput(EncoderDecoderAttentions):
    """The output of the translation model.

    last_hidden_state: [B T D], s_t of every token of the target.
    encoder_last_hidden_state: [B S D], the encoder's output after dropout; None from `decode`.
    scores: scores of the next token at every position of the target.
    cache: the state after the last token of the target.
    cross_attentions: weights of the only attention, float32 [1 B 1 T S]; only if requested.
    """

    last_hidden_state: jax.Array
    encoder_last_hidden_state: jax.Array | None
    scores: TokenScores
    cache: DecoderState

    @property
    def logits(self) -> jax.Array:
        """The scores as an array, float32 [B T V]."""
        return self.scores.logits()


class DecoderStep(nn.Module):
    """One token of the target: the stacked cells, then attention."""

    config: CoveConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, before: DecoderState, word: jax.Array, visible: jax.Array, *, source: EncodedSource, deterministic: bool
    ) -> tuple[DecoderState, jax.Array]:
        """Map a word [B E] and its mask, bool [B], to the state after it and s_t [B D].

        The mask is false for words that are not read.
        """
        config, cells = self.config, []
        dropout, twice = Dropout(config.dropout), Dropout(1 - (1 - config.dropout) ** 2)
        x = twice(jnp.concatenate([word, before.fed], axis=-1), deterministic)
        for layer, state in enumerate(before.cells):
            lstm = Lstm(
                config.width,
                config.initializer,
                bias_init=config.initializer,
                recurrent_bias=True,
                dtype=self.execution.dtype,
                name=f"layer_{layer}",
            )
            x = x if layer == 0 else dropout(x, deterministic)
            outputs, state = lstm(x[:, None], state, visible=visible[:, None])
            x = outputs[:, 0]
            cells.append(state)
        attention = LuongAttention(
            config.width,
            config.initializer,
            self.execution.dtype,
            projects_query=config.attention == "general",
            name="attention",
        )
        queries = x.reshape(len(source.encoded), -1, config.width)  # the rows of one source are its queries
        attended = attention(queries, source.encoded, source.attention_mask[:, None])
        spoken = dropout(attended.reshape(x.shape), deterministic)
        return DecoderState(tuple(cells), jnp.where(visible[:, None], spoken, before.fed)), spoken


class RecurrentDecoder(nn.Module):
    """The target's `words`, float32 [V E], and a loop over its tokens."""

    config: CoveConfig
    execution: Execution

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        visible: jax.Array | None,
        source: EncodedSource,
        before: DecoderState | None,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, DecoderState]:
        """Map int [B T] to s [B T D] and the state after the last token.

        visible: bool [B T], false for words that are not read; None: all are read.
        before: the state before the first token; by default the initial state that the source gives.
        """
        config, dtype = self.config, self.execution.dtype
        sizes = (config.vocab_size, config.vector_size, "vocab", config.initializer, dtype)
        words = shard_hidden(Embedding(*sizes, name="words")(input_ids))
        if before is None:
            before = DecoderState(source.states, jnp.zeros((len(input_ids), config.width), dtype))
        visible = jnp.ones_like(input_ids, bool) if visible is None else visible

        def body(step: DecoderStep, state: DecoderState, inputs: tuple) -> tuple[DecoderState, Any]:
            with collect(wanted()) as weights:
                state, spoken = step(state, *inputs, source=source, deterministic=deterministic)
            return state, (spoken, weights)

        shared = {"variable_broadcast": "params", "split_rngs": {"params": False, "dropout": True}}
        loop = nn.scan(body, in_axes=1, out_axes=1, **shared)
        after, (spoken, weights) = loop(DecoderStep(config, self.execution, name="step"), before, (words, visible))
        record_layers({name: jnp.moveaxis(each[..., 0, :], 1, 3) for name, each in weights.items()})  # [1 T B 1 1 S]
        return shard_hidden(spoken), after


class CoveForTranslation(nn.Module):
    """Encoder, decoder, and the output layer `generator`, float32 [V D] with a bias."""

    config: CoveConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, init = self.config, self.config.initializer
        self.encoder = config.module(Purpose.ENCODING, self.execution)
        self.decoder = RecurrentDecoder(config, self.execution)
        self.dropout = Dropout(config.dropout)
        kernel = nn.with_logical_partitioning(init, ("vocab", "embed"))
        self.generator = self.param("generator", kernel, (config.vocab_size, config.width))
        bias = as_bias(init, ("vocab",))
        self.generator_bias = self.param("generator_bias", bias, (config.vocab_size,))

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        decoder_input_ids: jax.Array,
        decoder_attention_mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        decoder_segment_ids: jax.Array | None = None,
        decoder_positions: jax.Array | None = None,
        deterministic: bool = True,
        output_attentions: bool = False,
    ) -> TranslationOutput:
        """Read sources and targets, one pair in each row. A target token sees only the target tokens up to itself.

        Args:
            input_ids: int [B S], the source.
            attention_mask: [B S], 0 for tokens that are not read.
            decoder_input_ids: int [B T], the target, each token one position before its prediction.
            decoder_attention_mask: [B T], as `attention_mask`.
            segment_ids: int [B S], 1 at tokens and 0 at padding; given together with `decoder_segment_ids`.
            positions: int [B S]; LSTMs do not need positions, so only the shape is checked.
            decoder_segment_ids: int [B T], as `segment_ids`.
            decoder_positions: int [B T], as `positions`.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_attentions: returns the weights of the decoder's attention (`plmjax.contracts.attentions`).

        Raises:
            ValueError: the inputs of a side differ in shape, or only one side has segments.
        """
        check_segments(segment_ids, decoder_segment_ids)
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        check_token_inputs(None, "", decoder_input_ids, decoder_attention_mask, decoder_positions, decoder_segment_ids)
        source = self._read(input_ids, visible_tokens(attention_mask, segment_ids), deterministic)
        visible = visible_tokens(decoder_attention_mask, decoder_segment_ids)
        with collect(output_attentions) as attentions:
            output = self._decode_target(decoder_input_ids, visible, source, before=None, deterministic=deterministic)
        return output.replace(encoder_last_hidden_state=source.encoded, cross_attentions=attentions.get(CROSS))

    def encode(self, input_ids: jax.Array, attention_mask: jax.Array | None = None) -> EncodedSource:
        """Encode sources, as in `__call__`, for targets that are generated token by token."""
        return self._read(input_ids, visible_tokens(attention_mask, None), True)

    def decode(
        self,
        decoder_input_ids: jax.Array,
        source: EncodedSource,
        decoder_attention_mask: jax.Array | None = None,
        cache: DecoderState | None = None,
    ) -> TranslationOutput:
        """Decode targets, int [R T], of encoded sources.

        cache: the cache that the call for the previous tokens returned. With a cache, R may be a multiple of the number
            of sources; adjacent targets then share a source.
        """
        visible = visible_tokens(decoder_attention_mask, None)
        return self._decode_target(decoder_input_ids, visible, source, before=cache, deterministic=True)

    def _read(self, input_ids: jax.Array, visible: jax.Array | None, deterministic: bool) -> EncodedSource:
        visible = jnp.ones_like(input_ids, bool) if visible is None else visible
        output = self.encoder(input_ids, visible, deterministic=deterministic)
        states = tuple(
            jax.tree.map(lambda one, other: jnp.concatenate([one, other], axis=-1), *directions)
            for directions in output.states
        )
        return EncodedSource(self.dropout(output.last_hidden_state, deterministic), visible, states)

    def _decode_target(
        self,
        input_ids: jax.Array,
        visible: jax.Array | None,
        source: EncodedSource,
        *,
        before: DecoderState | None,
        deterministic: bool,
    ) -> TranslationOutput:
        spoken, after = self.decoder(input_ids, visible, source, before, deterministic=deterministic)
        scores = VocabularyScores(spoken, self.generator, self.generator_bias)
        return TranslationOutput(spoken, None, scores, after)


def _cache(config: CoveConfig, batch: int, capacity: int, execution: Execution) -> None:
    """Return None: the decoder begins with the last state of its source."""


def _parts(config: CoveConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the words, each layer of the encoder, and the decoder."""
    layers = (ParameterGroup((f"{ENCODER}/layer_{layer}",)) for layer in range(config.num_layers))
    return ParameterGroup((f"{ENCODER}/words",)), *layers, ParameterGroup(("decoder",))


SYSTEM = declare(
    System(
        CoveConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: CoveForTranslation,
            Purpose.CAUSAL_LM: CoveForTranslation,
            Purpose.SEQ2SEQ: CoveForTranslation,
            Purpose.ENCODING: MtLstm,
            Purpose.EMBEDDING: MtLstm,
            Purpose.QUESTION_ANSWERING: QuestionAnswering,
        },
        name=ENCODER,
        template=lambda config: Template("A end", "A end B:1 end:1", "last"),
        parts=_parts,
        cache=_cache,
        token_table=f"{ENCODER}/words/embedding",
        packs=False,
    )
)
