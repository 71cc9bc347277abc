"""AWD-LSTM: regularizing and optimizing LSTM language models (Merity, Keskar and Socher, ICLR 2018, arXiv 1708.02182;
salesforce/awd-lstm-lm model.py, weight_drop.py, embed_regularize.py). It is the language model of ULMFiT (ulmfit.py).

A plain LSTM language model with five kinds of dropout. In the order of the computation they are:

    embedding    a token of the vocabulary is dropped at all its positions      x = words[token] * mask[token]
    input        locked: one mask for all tokens of a row                       x = x * mask
    weight       DropConnect: U of the recurrence, one mask for all tokens      h = lstm(x; W, U * mask)
    hidden       locked, between the layers                                     x = h * mask
    output       locked, after the last layer                                   y = h * mask

    next token:  softmax(words . y + bias)        the last layer is as wide as an embedding, so that the table is tied

The other ideas of the paper are parts of the training. Activation regularization and windows of varying length are in
the objective (plmjax/objectives/awd_lstm.py). Non-monotonically triggered averaging is in the optimizer
(`StochasticGradientDescent(averaging="non-monotone")`).

Deviation: in the paper the state passes from one document to the next; here it is by default reset to zero at the token
between them.
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
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_0, FROM_1, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.recurrent.lstm import GATES, LstmState, recurrence
from plmjax.layers.recurrent.masks import visible_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores


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
    """Dropout rate of the last layer's output, with one mask for a row."""
    initializer_range: float = 0.1
    """Bound of the uniform distribution of the initial embeddings: from minus this value to this value."""

    field_names: ClassVar[dict[str, str]] = {"width": "embedding_size", "depth": "num_layers"}

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_layers")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), initializer_range=FROM_0)
        places = ("embedding", "input", "weight", "hidden", "output")
        check_ranges("model", self, **{f"{place}_dropout": FRACTION for place in places})

    penn_treebank = Size("24,221,600 parameters; less of the input is dropped (section 5).", input_dropout=0.4)
    wikitext2 = Size("33,556,078 parameters.", vocab_size=33_278)
    wikitext103 = Size("127,573,335 parameters.", vocab_size=267_735)
    tiny = Size("Two layers, of 256 and 128.", embedding_size=128, hidden_size=256, num_layers=2)

    @property
    def initializer(self) -> Initializer:
        """Uniform initializer, for the embeddings and for the kernels of a downstream task's head."""
        return uniform(self.initializer_range)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Output size of each layer, H; for the last layer, the embedding size."""
        return (self.hidden_size,) * (self.num_layers - 1) + (self.embedding_size,)

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with one dropout rate in all five places."""
        places = ("embedding", "input", "weight", "hidden", "output")
        return dataclasses.replace(self, **{f"{place}_dropout": rate for place in places})

    def zero_states(self, batch_size: int) -> tuple[LstmState, ...]:
        """Return the state of every layer before a text."""
        return tuple(LstmState.zeros(batch_size, size) for size in self.layer_sizes)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only: 6 E V per prediction, and 24 H (D + H)
        per token and layer, where D is the size of the layer's input.
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

    last_hidden_state: [B T E], after the output dropout.
    raw_hidden_state: [B T E], the same before this dropout.
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


class WeightDroppedLstm(nn.Module):
    """One layer with dropout of its recurrent weights (DropConnect), with one mask for all tokens and rows.

    It has two biases, one with the input and one with the recurrent kernel, as in torch; only their sum matters.
    """

    features: int
    dropout: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        state: LstmState,
        starts: jax.Array | None,
        *,
        visible: jax.Array | None,
        deterministic: bool,
    ) -> tuple[jax.Array, LstmState]:
        """Map [B T D] to [B T H] and the state after the row."""
        axes, init = ("embed", None, "mlp"), uniform(self.features**-0.5)
        gates = Projection((GATES, self.features), axes, init, self.dtype, bias_init=init, name="input")(x)
        shape = (self.features, GATES, self.features)
        kernel = self.param("recurrent_kernel", nn.with_logical_partitioning(init, axes), shape)
        bias = self.param("recurrent_bias", as_bias(init, axes[1:]), shape[1:])
        kernel = Dropout(self.dropout, axes=axes)(kernel, deterministic)
        x, state = recurrence(gates + bias.astype(self.dtype), kernel, state, starts=starts, visible=visible)
        return shard_hidden(x), state


class AwdLstmModel(nn.Module):
    """Embeddings and L layers."""

    config: AwdLstmConfig
    execution: Execution = Execution()

    def setup(self) -> None:
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
        x = shard_hidden(x)
        after, hidden, rates = [], [x], (config.input_dropout,) + (config.hidden_dropout,) * (config.num_layers - 1)
        for number, (size, rate, state) in enumerate(zip(config.layer_sizes, rates, before, strict=True)):
            layer = WeightDroppedLstm(size, config.weight_dropout, self.execution.dtype, name=f"layer_{number}")
            x, state = layer(
                _locked(rate)(x, deterministic), state, starts, visible=visible, deterministic=deterministic
            )
            after.append(state)
            hidden.append(x)
        dropped = _locked(config.output_dropout)(x, deterministic)
        return AwdLstmOutput(dropped, x, tuple(after), tuple(hidden) if output_hidden_states else None)


def _locked(rate: float) -> Dropout:
    """Return variational dropout of [B T D] (Gal and Ghahramani, arXiv 1512.05287).

    All tokens of a row share one mask.
    """
    return Dropout(rate, together=(1,))


class AwdLstmForCausalLM(nn.Module):
    """The layers with the scores of the next token, from the word table and a bias."""

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
        zeros = as_bias(nn.initializers.zeros_init(), ("vocab",))
        bias = self.param("output_bias", zeros, (self.config.vocab_size,))
        table = encoder.word_embeddings.embedding
        return outputs.replace(scores=VocabularyScores(outputs.last_hidden_state, table, bias))


def _cache(config: AwdLstmConfig, batch: int, capacity: int, execution: Execution) -> AwdLstmCache:
    """Return the states before a text. Their size does not depend on the capacity."""
    return AwdLstmCache(config.zero_states(batch))


def _parts(config: AwdLstmConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings and each layer."""
    layers = (ParameterGroup((f"awd_lstm/layer_{layer}",)) for layer in range(config.num_layers))
    return ParameterGroup(("awd_lstm/word_embeddings",)), *layers


SYSTEM = declare(
    System(
        AwdLstmConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: AwdLstmForCausalLM,
            Purpose.CAUSAL_LM: AwdLstmForCausalLM,
            Purpose.ENCODING: AwdLstmModel,
            Purpose.EMBEDDING: AwdLstmModel,
        },
        name="awd_lstm",
        # as in pretraining, a text follows the token that stands between documents
        template=lambda config: Template("document_end A", "document_end A document_end B", "last"),
        parts=_parts,
        cache=_cache,
        token_table="awd_lstm/word_embeddings/embedding",
    )
)
