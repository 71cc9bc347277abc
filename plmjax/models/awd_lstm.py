"""AWD-LSTM: regularizing and optimizing LSTM language models (Merity, Keskar and Socher, ICLR 2018, arXiv 1708.02182;
salesforce/awd-lstm-lm model.py, weight_drop.py, embed_regularize.py). It is the language model of ULMFiT (Howard and
Ruder, ACL 2018, arXiv 1801.06146).

A plain LSTM language model with five kinds of dropout, which make it good. In the order of the computation they are:

    embedding    a token of the vocabulary is dropped wherever it stands        x = words[token] * row[token]
    input        locked: one mask for all tokens of a row                       x = x * mask
    weight       DropConnect: U of the recurrence, one mask for all tokens      h = lstm(x; W, U * mask)
    hidden       locked, between the layers                                     x = h * mask
    output       locked, after the last layer                                   y = h * mask

    next token:  softmax(words . y + bias)        the last layer is as wide as an embedding, so that the table is tied

The other ideas of the paper are parts of the training. Activation regularization and windows of varying length are in
the objective (plmjax/objectives/awd_lstm.py). Non-monotonically triggered averaging is in the optimizer
(`StochasticGradientDescent(averaging="non-monotone")`).

ULMFiT's classifier reads a text in windows. The state passes from one window to the next, but the gradient does not
(section 3.3, "BPT3C"; fastai 2.8.12 text/models/core.py):

    features = [last h, max of h, mean of h]          over all tokens of the text, h before the output's dropout
    scores   = W2 drop(norm(relu(W1 drop(norm(features)))))                    norm over the batch, relu of 50 numbers

A text is read completely, up to the length of a row. The backward pass includes every window. fastai includes only the
last 1,440 tokens, which limits memory; here the length of a row limits it.

Deviation: in the paper the state passes from one document to the next; here it starts anew at the token between them.
Deviation: fastai initializes the biases of norm to 0.001; here they are initialized to 0.
"""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FROM_0, FROM_1, SHARE, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.normalization import BatchNorm
from plmjax.layers.projection import Projection
from plmjax.layers.recurrent.lstm import GATES, LstmState, recurrence
from plmjax.layers.recurrent.masks import text_starts, visible_tokens
from plmjax.layers.stack import repeat
from plmjax.layers.tokens import check_token_inputs, last_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores

WINDOW = 72
"""Number of tokens in a classifier's window. No gradient passes back beyond the first token of the window."""
HIDDEN_FEATURES = 50
"""Hidden size between the two linear maps of a classifier."""


@dataclasses.dataclass(frozen=True)
class AwdLstmConfig(ModelConfig):
    """Sizes and dropout rates of an AWD-LSTM.

    The defaults are those of the released code, for the words of the Penn Treebank.
    """

    vocab_size: int = 10_000
    """Vocabulary size."""
    embedding_size: int = 400
    """Embedding size, also the size of the last layer's output, E."""
    hidden_size: int = 1150
    """Hidden size of the other layers."""
    num_layers: int = 3
    """Number of layers, L."""
    embedding_dropout: float = 0.1
    """Dropout rate of whole tokens of the vocabulary."""
    input_dropout: float = 0.65
    """Dropout rate of the first layer's input, with one mask for a row."""
    weight_dropout: float = 0.5
    """Dropout rate of the recurrent weights of every layer."""
    hidden_dropout: float = 0.3
    """Dropout rate of the other layers' inputs, with one mask for a row."""
    output_dropout: float = 0.4
    """Dropout rate of the last layer's output, with one mask for a row; in a classifier, of the pooled features."""
    classifier_dropout: float = 0.1
    """Dropout rate of the features between the two linear maps of a classifier."""
    initializer_range: float = 0.1
    """Bound of the uniform distribution of the initial embeddings: from minus this value to this value."""

    backwards: bool = False
    """True to read texts from their end to their beginning. The layout's rows must have the same direction."""

    field_names: ClassVar[dict[str, str]] = {"width": "embedding_size", "depth": "num_layers"}

    def __post_init__(self) -> None:
        """Check the sizes and the rates."""
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_layers")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), initializer_range=FROM_0)
        places = ("embedding", "input", "weight", "hidden", "output")
        check_ranges("model", self, **{f"{place}_dropout": SHARE for place in (*places, "classifier")})

    penn_treebank = Size("24,221,600 parameters; less of the input is dropped (section 5).", input_dropout=0.4)
    wikitext2 = Size("33,556,078 parameters.", vocab_size=33_278)
    wikitext103 = Size("127,573,335 parameters.", vocab_size=267_735)
    ulmfit = Size(
        "44,333,280 parameters: as fastai trains it on WikiText-103 for ULMFiT, wider and with smaller dropouts.",
        vocab_size=60_000,
        hidden_size=1152,
        embedding_dropout=0.02,
        input_dropout=0.25,
        weight_dropout=0.2,
        hidden_dropout=0.15,
        output_dropout=0.1,
    )
    tiny = Size("Two layers, of 256 and 128.", embedding_size=128, hidden_size=256, num_layers=2)

    @property
    def system(self) -> System:
        """The declaration. A model that reads texts from their end generates no text."""
        return _reading_backwards(SYSTEM) if self.backwards else SYSTEM

    @property
    def initializer(self) -> Initializer:
        """Uniform initializer, for the embeddings and for the kernels of a downstream task's head."""
        return uniform(self.initializer_range)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Output size of each layer, H. The last layer's is the embedding size."""
        return (self.hidden_size,) * (self.num_layers - 1) + (self.embedding_size,)

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with one dropout rate in all five places."""
        places = ("embedding", "input", "weight", "hidden", "output")
        return dataclasses.replace(self, **{f"{place}_dropout": rate for place in places})

    def zero_states(self, batch_size: int) -> tuple[LstmState, ...]:
        """Return the state of every layer before a text."""
        return tuple(LstmState.zeros(batch_size, size) for size in self.layer_sizes)

    def empty_cache(self, batch: int, room: int, execution: Execution) -> "AwdLstmCache":
        """Return the states before a text, for any `room`."""
        return AwdLstmCache(self.zero_states(batch))

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only: 6 x 4 H (D + H) per token and layer, and
        6 E V per prediction.
        """
        inputs = (self.embedding_size, *self.layer_sizes)
        layers = sum(GATES * own * (below + own) for below, own in zip(inputs, self.layer_sizes, strict=False))
        head = predictions * self.embedding_size * self.vocab_size
        return 6.0 * batch_size * (sequence_length * layers + head)


@flax.struct.dataclass
class AwdLstmCache(Cache):
    """The state of every layer after the tokens read so far."""

    states: tuple[LstmState, ...]


@flax.struct.dataclass
class AwdLstmOutput:
    """The output of the modules.

    last_hidden_state: [B T E], after the dropout of the output.
    raw_hidden_state: [B T E], before that dropout.
    states: states of every layer, after the row.
    hidden_states: outputs of the embeddings and of every layer, [B T E] or [B T H]; only if requested.
    scores: scores of the next token at every position; only for a language model.
    logits: float32, the scores as an array, [B T V].
    """

    last_hidden_state: jax.Array
    raw_hidden_state: jax.Array
    states: tuple[LstmState, ...]
    hidden_states: tuple[jax.Array, ...] | None = None
    scores: TokenScores | None = None

    @property
    def logits(self) -> jax.Array:
        return self.scores.logits()

    @property
    def cache(self) -> AwdLstmCache:
        """The states, for the tokens after the row."""
        return AwdLstmCache(self.states)


@flax.struct.dataclass
class AwdLstmClassification:
    """The output of the classifier.

    logits: float32 [B labels], or [B K labels] of packed texts.
    """

    logits: jax.Array


class WeightDroppedLstm(nn.Module):
    """One layer with dropout of its recurrent weights (DropConnect), with one mask for all tokens and rows.

    It has two biases, one with the input and one with the recurrent kernel, as torch's layer; only their sum matters.
    """

    features: int
    dropout: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: jax.Array, state: LstmState, starts: jax.Array | None, visible: jax.Array | None, deterministic: bool
    ) -> tuple[jax.Array, LstmState]:
        """Map [B T D] to [B T H] and the state after the row."""
        axes, init = ("embed", None, "mlp"), uniform(self.features**-0.5)
        gates = Projection((GATES, self.features), axes, init, self.dtype, bias_init=init, name="input")(x)
        shape = (self.features, GATES, self.features)
        kernel = self.param("recurrent_kernel", nn.with_logical_partitioning(init, axes), shape)
        bias = self.param("recurrent_bias", nn.with_logical_partitioning(init, axes[1:]), shape[1:])
        kernel = Dropout(self.dropout, axes=axes)(kernel, deterministic)
        x, state = recurrence(gates + bias.astype(self.dtype), kernel, state, starts=starts, visible=visible)
        return nn.with_logical_constraint(x, ("batch", "length", "embed")), state


class AwdLstmModel(nn.Module):
    """Embeddings and L layers."""

    config: AwdLstmConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the word table."""
        config = self.config
        sizes = (config.vocab_size, config.embedding_size, "vocab")
        self.word_embeddings = Embedding(*sizes, config.initializer, self.execution.dtype)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        starts: jax.Array | None = None,
        states: tuple[LstmState, ...] | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> AwdLstmOutput:
        """Read rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 0 for tokens that are not read; they leave the states unchanged.
            starts: bool [B T], true where the states are zero before the token is read.
            states: states of every layer before the first token; None is zero.
            deterministic: disables dropout.
            output_hidden_states: returns the outputs of all layers.
        """
        config = self.config
        visible = visible_tokens(attention_mask, None)
        before = config.zero_states(len(input_ids)) if states is None else states
        kept = Dropout(config.embedding_dropout, axes=("vocab",))(jnp.ones((config.vocab_size, 1)), deterministic)
        x = self.word_embeddings(input_ids) * kept[input_ids].astype(self.execution.dtype)
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        after, hidden, rates = [], [x], (config.input_dropout,) + (config.hidden_dropout,) * (config.num_layers - 1)
        for number, (size, rate, state) in enumerate(zip(config.layer_sizes, rates, before, strict=True)):
            layer = WeightDroppedLstm(size, config.weight_dropout, self.execution.dtype, name=f"layer_{number}")
            x, state = layer(_locked(rate)(x, deterministic), state, starts, visible, deterministic)
            after.append(state)
            hidden.append(x)
        dropped = _locked(config.output_dropout)(x, deterministic)
        return AwdLstmOutput(dropped, x, tuple(after), tuple(hidden) if output_hidden_states else None)


def _locked(rate: float) -> Dropout:
    """Return the variational dropout of [B T D] (Gal and Ghahramani, arXiv 1512.05287).

    All tokens of a row share one mask.
    """
    return Dropout(rate, together=(1,))


class AwdLstmForCausalLM(nn.Module):
    """The layers with the scores of the next token, which are computed from the word table and a bias."""

    config: AwdLstmConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, *arguments: Any, cache: AwdLstmCache | None = None, **settings: Any
    ) -> AwdLstmOutput:
        """Take and return the same as `AwdLstmModel`, with `scores`.

        cache: the `states`, during generation.
        """
        encoder = self.config.module(Purpose.ENCODING, self.execution)
        if cache is not None:
            settings["states"] = cache.states
        outputs = encoder(input_ids, *arguments, **settings)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",))
        bias = self.param("output_bias", zeros, (self.config.vocab_size,))
        table = encoder.word_embeddings.embedding
        return outputs.replace(scores=VocabularyScores(outputs.last_hidden_state, table, bias))


class AwdLstmForSequenceClassification(nn.Module):
    """ULMFiT's classifier: the layers over whole texts, and a head on their pooled outputs."""

    config: AwdLstmConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """Create the layers and the head."""
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        dropouts = self.config.output_dropout, self.config.classifier_dropout
        self.classifier = PoolingClassifier(self.num_labels, dropouts, self.execution.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> AwdLstmClassification:
        """Return the scores of texts: [B labels], or [B K labels] of the packed texts that end at `cls_positions`.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 1 for tokens; all by default.
            positions: int [B T]; they have no effect.
            segment_ids: int [B T], the packed text of each token, numbered from 1 in their order, 0 for padding.
            cls_positions: int [B K], the last token of each text; without it a row is one text.
            deterministic: disables dropout, and normalizes by the running statistics of batches.
        """
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        segments = jnp.ones_like(input_ids) if segment_ids is None else segment_ids
        if attention_mask is not None:
            segments = jnp.where(attention_mask > 0, segments, 0)
        hidden = self._read(input_ids, segments, deterministic)
        ends = cls_positions
        if ends is None:
            places = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
            ends = last_tokens(places[..., None], segments > 0, None)
        logits = self.classifier(hidden, segments, ends, deterministic)
        return AwdLstmClassification(logits if cls_positions is not None else logits[:, 0])

    def _read(self, input_ids: jax.Array, segments: jax.Array, deterministic: bool) -> jax.Array:
        """Compute the last layer's output for every token, [B T] -> [B T E], window by window."""
        batch, length = input_ids.shape
        count = -(-length // WINDOW)
        starts = text_starts(segments)

        def windows(x: jax.Array) -> jax.Array:  # [B T] -> [windows B WINDOW]
            padded = jnp.pad(x, ((0, 0), (0, count * WINDOW - length)))
            return jnp.moveaxis(padded.reshape(batch, count, WINDOW), 1, 0)

        def read(encoder: AwdLstmModel, states: tuple[LstmState, ...], window: tuple) -> tuple:
            before = jax.lax.stop_gradient(states)
            outputs = encoder(*window, before, deterministic=deterministic)
            return outputs.states, outputs.raw_hidden_state

        inputs = jax.tree.map(windows, (input_ids, segments, starts))
        how = dataclasses.replace(self.execution, unroll=1)
        _, hidden = repeat(read, self.encoder, count, how, self.config.zero_states(batch), inputs)
        hidden = jnp.moveaxis(hidden, 0, 1).reshape(batch, count * WINDOW, -1)[:, :length]
        return nn.with_logical_constraint(hidden, ("batch", "length", "embed"))


class PoolingClassifier(nn.Module):
    """Concat pooling, and two linear maps of normalized features.

    dropouts: dropout rates of the pooled features, and of those between the two maps.
    """

    num_labels: int
    dropouts: tuple[float, float]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array, segments: jax.Array, ends: jax.Array, deterministic: bool) -> jax.Array:
        """Map [B T E] to float32 [B K labels], with int [B T] and the last tokens int [B K].

        If a row has fewer than K texts, the last elements of `ends` are 0.
        """
        x = hidden.astype(jnp.float32)
        number = jnp.take_along_axis(segments, ends, axis=1, mode="clip")
        exists = number == jnp.arange(1, ends.shape[1] + 1)
        own = ((number[..., None] == segments[:, None]) & exists[..., None])[..., None]  # [B K T 1]
        last = jnp.take_along_axis(x, ends[..., None], axis=1, mode="clip")
        largest = jnp.max(jnp.where(own, x[:, None], -jnp.inf), axis=2)
        mean = jnp.einsum("BKT,BTE->BKE", own[..., 0].astype(jnp.float32), x) / jnp.maximum(jnp.sum(own, axis=2), 1)
        features = jnp.concatenate([last, jnp.where(exists[..., None], largest, 0), mean], axis=-1)
        features = nn.with_logical_constraint(features, ("batch", None, "embed"))
        of_features, of_hidden = self.dropouts
        hidden = nn.relu(self._mapped("hidden", HIDDEN_FEATURES, of_features, features, exists, deterministic))
        return self._mapped("output", self.num_labels, of_hidden, hidden, exists, deterministic)

    def _mapped(
        self, name: str, size: int, rate: float, x: jax.Array, exists: jax.Array, deterministic: bool
    ) -> jax.Array:
        """Compute W drop(norm(x)): [B K D] -> float32 [B K size]."""
        x = Dropout(rate)(BatchNorm(name=f"{name}_norm")(x, exists, deterministic), deterministic)
        init = uniform(x.shape[-1] ** -0.5)
        return Projection((size,), ("embed", None), init, self.dtype, logits=True, use_bias=False, name=name)(x)


def _parts(config: AwdLstmConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings and each layer."""
    layers = (ParameterGroup((f"awd_lstm/layer_{layer}",)) for layer in range(config.num_layers))
    return ParameterGroup(("awd_lstm/word_embeddings",)), *layers


TEMPLATE = Template("document_end A", "document_end A document_end B", "last")
"""The layout of a text, as in the language model: after the token that stands between documents."""


def _reading_backwards(system: System) -> System:
    """Return the same system for texts that are read from their end to their beginning."""
    return dataclasses.replace(
        system,
        modules={purpose: made for purpose, made in system.modules.items() if purpose is not Purpose.WRITING},
        template=lambda config: dataclasses.replace(TEMPLATE, backwards=True),
        backwards=True,
    )


SYSTEM = declare(
    System(
        AwdLstmConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: AwdLstmForCausalLM,
            Purpose.WRITING: AwdLstmForCausalLM,
            Purpose.ENCODING: AwdLstmModel,
            Purpose.EMBEDDING: AwdLstmModel,
            Purpose.TEXT_LABELS: AwdLstmForSequenceClassification,
        },
        name="awd_lstm",
        template=lambda config: TEMPLATE,
        parts=_parts,
        token_table="awd_lstm/word_embeddings/embedding",
    )
)
