"""AWD-LSTM: regularizing and optimizing LSTM language models (Merity, Keskar and Socher, ICLR 2018, arXiv 1708.02182;
salesforce/awd-lstm-lm model.py, weight_drop.py, embed_regularize.py). It is the language model of ULMFiT (Howard and
Ruder, ACL 2018, arXiv 1801.06146).

A plain LSTM language model whose five dropouts make it good, in the order in which a token meets them:

    embedding    a token of the vocabulary is dropped wherever it stands        x = words[token] * row[token]
    input        locked: one mask for all tokens of a row                       x = x * mask
    weight       DropConnect: U of the recurrence, one mask for all tokens      h = lstm(x; W, U * mask)
    hidden       locked, between the layers                                     x = h * mask
    output       locked, after the last layer                                   y = h * mask

    next token:  softmax(words . y + bias)        the last layer is as wide as an embedding, so that the table is tied

What else is in the paper belongs to the training: activation regularization and windows of varying length to the
objective (plmjax/objectives/awd_lstm.py), non-monotonically triggered averaging to the optimizer
(`StochasticGradientDescent(averaging="non-monotone")`).

Deviation: the paper's state goes from one document to the next; here it starts anew at the token between them.
"""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.errors import FROM_0, FROM_1, SHARE, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.embeddings import Embedding
from plmjax.layers.execution import Execution
from plmjax.layers.initializers import uniform
from plmjax.layers.lstm import GATES, State, recurrence
from plmjax.layers.model_config import ModelConfig, ParameterGroup
from plmjax.layers.projection import Projection
from plmjax.layers.vocabulary_scores import VocabularyScores


@dataclasses.dataclass(frozen=True)
class AwdLstmConfig(ModelConfig):
    """Sizes and dropouts of an AWD-LSTM; the defaults are those of the released code, on the Penn Treebank's words."""

    vocab_size: int = 10_000
    """Tokens of the vocabulary."""
    embedding_size: int = 400
    """Numbers of an embedding and of the last layer's output, E."""
    hidden_size: int = 1150
    """Numbers of the other layers' outputs."""
    num_layers: int = 3
    """Layers, L."""
    embedding_dropout: float = 0.1
    """Dropout of whole tokens of the vocabulary."""
    input_dropout: float = 0.65
    """Dropout of the first layer's input, locked over a row."""
    weight_dropout: float = 0.5
    """Dropout of the recurrent weights of every layer."""
    hidden_dropout: float = 0.3
    """Dropout of the other layers' inputs, locked over a row."""
    output_dropout: float = 0.4
    """Dropout of the last layer's output, locked over a row."""
    initializer_range: float = 0.1
    """The embeddings begin uniform from minus this to this."""

    encoder_name: ClassVar[str] = "awd_lstm"
    field_names: ClassVar[dict[str, str]] = {"width": "embedding_size", "depth": "num_layers"}
    token_table: ClassVar[str] = "awd_lstm/word_embeddings/embedding"

    def __post_init__(self) -> None:
        """Checks the sizes and the rates."""
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_layers")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), initializer_range=FROM_0)
        places = ("embedding", "input", "weight", "hidden", "output")
        check_ranges("model", self, **{f"{place}_dropout": SHARE for place in places})

    @classmethod
    def penn_treebank(cls, **overrides: Any) -> Self:
        """24,221,600 parameters; less of the input is dropped (section 5)."""
        return cls(**({"input_dropout": 0.4} | overrides))

    @classmethod
    def wikitext2(cls, **overrides: Any) -> Self:
        """33,556,078 parameters."""
        return cls(**({"vocab_size": 33_278} | overrides))

    @classmethod
    def wikitext103(cls, **overrides: Any) -> Self:
        """127,573,335 parameters."""
        return cls(**({"vocab_size": 267_735} | overrides))

    @classmethod
    def ulmfit(cls, **overrides: Any) -> Self:
        """44,333,280 parameters: as fastai trains it on WikiText-103 for ULMFiT, wider and with smaller dropouts."""
        rates = {"embedding": 0.02, "input": 0.25, "weight": 0.2, "hidden": 0.15, "output": 0.1}
        sizes = {"vocab_size": 60_000, "hidden_size": 1152}
        return cls(**(sizes | {f"{place}_dropout": rate for place, rate in rates.items()} | overrides))

    @classmethod
    def tiny(cls, **overrides: Any) -> Self:
        """Two layers, of 256 and 128."""
        return cls(**({"embedding_size": 128, "hidden_size": 256, "num_layers": 2} | overrides))

    @property
    def initializer(self) -> Initializer:
        """Uniform; of the embeddings, and of the kernels of a downstream task's head."""
        return uniform(self.initializer_range)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Numbers of each layer's output, H: the last one's is an embedding's."""
        return (self.hidden_size,) * (self.num_layers - 1) + (self.embedding_size,)

    @property
    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """The embeddings and each layer."""
        name = self.encoder_name
        layers = (ParameterGroup((f"{name}/layer_{layer}",)) for layer in range(self.num_layers))
        return ParameterGroup((f"{name}/word_embeddings",)), *layers

    def with_dropout(self, rate: float) -> Self:
        """The same sizes with one rate in all five places."""
        places = ("embedding", "input", "weight", "hidden", "output")
        return dataclasses.replace(self, **{f"{place}_dropout": rate for place in places})

    def zero_states(self, batch_size: int) -> tuple[State, ...]:
        """The state of every layer before a text."""
        return tuple(State.zeros(batch_size, size) for size in self.layer_sizes)

    def for_pretraining(self, execution: Execution) -> "AwdLstmForCausalLM":
        """The layers with the scores of the next token."""
        return AwdLstmForCausalLM(self, execution)

    def encoder(self, execution: Execution) -> "AwdLstmModel":
        """The layers alone, under the name that their parameters have in every other module."""
        return AwdLstmModel(self, execution, name=self.encoder_name)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Model FLOPs of one training step (backward = 2 x forward) with `predictions` scored positions a row.

        Matrix products only: 6 x 4 H (D + H) a token and layer, and 6 E V a prediction.
        """
        inputs = (self.embedding_size, *self.layer_sizes)
        layers = sum(GATES * own * (below + own) for below, own in zip(inputs, self.layer_sizes, strict=False))
        head = predictions * self.embedding_size * self.vocab_size
        return 6.0 * batch_size * (sequence_length * layers + head)


@flax.struct.dataclass
class AwdLstmOutput:
    """What the modules return.

    last_hidden_state: [B T E], after the dropout of the output.
    raw_hidden_state: [B T E], before it.
    states: of every layer, after the row.
    scores: of the next token at every position; a language model's alone.
    """

    last_hidden_state: jax.Array
    raw_hidden_state: jax.Array
    states: tuple[State, ...]
    scores: VocabularyScores | None = None

    @property
    def logits(self) -> jax.Array:
        """The scores as an array, float32 [B T V]."""
        return self.scores.logits()


class WeightDroppedLstm(nn.Module):
    """One layer whose recurrent weights are dropped out (DropConnect), the same ones for all tokens and rows.

    It has a bias beside the input's and one beside the recurrent kernel, as torch's layer; their sum is what counts.
    """

    features: int
    dropout: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: jax.Array, state: State, starts: jax.Array | None, visible: jax.Array | None, deterministic: bool
    ) -> tuple[jax.Array, State]:
        """[B T D] -> [B T H] and the state after the row."""
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
        """The word table."""
        config = self.config
        sizes = (config.vocab_size, config.embedding_size, "vocab")
        self.word_embeddings = Embedding(*sizes, config.initializer, self.execution.dtype)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        starts: jax.Array | None = None,
        states: tuple[State, ...] | None = None,
        *,
        deterministic: bool = True,
    ) -> AwdLstmOutput:
        """Reads rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 0 where a token is not read: the states pass by it unchanged.
            starts: bool [B T], where the states are zero before the token is read.
            states: of every layer before the first token; None is zero.
            deterministic: without dropout.
        """
        config = self.config
        visible = None if attention_mask is None else attention_mask > 0
        before = config.zero_states(len(input_ids)) if states is None else states
        kept = Dropout(config.embedding_dropout, axes=("vocab",))(jnp.ones((config.vocab_size, 1)), deterministic)
        x = self.word_embeddings(input_ids) * kept[input_ids].astype(self.execution.dtype)
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        after, rates = [], (config.input_dropout,) + (config.hidden_dropout,) * (config.num_layers - 1)
        for number, (size, rate, state) in enumerate(zip(config.layer_sizes, rates, before, strict=True)):
            layer = WeightDroppedLstm(size, config.weight_dropout, self.execution.dtype, name=f"layer_{number}")
            x, state = layer(_locked(rate)(x, deterministic), state, starts, visible, deterministic)
            after.append(state)
        return AwdLstmOutput(_locked(config.output_dropout)(x, deterministic), x, tuple(after))


def _locked(rate: float) -> Dropout:
    """The variational dropout of [B T D]: one mask for all tokens of a row (Gal and Ghahramani, arXiv 1512.05287)."""
    return Dropout(rate, together=(1,))


class AwdLstmForCausalLM(nn.Module):
    """The layers, whose scores of the next token are those of their word table and a bias."""

    config: AwdLstmConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids: jax.Array, *arguments: Any, **settings: Any) -> AwdLstmOutput:
        """As `AwdLstmModel`, with `scores`."""
        encoder = self.config.encoder(self.execution)
        outputs = encoder(input_ids, *arguments, **settings)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",))
        bias = self.param("output_bias", zeros, (self.config.vocab_size,))
        table = encoder.word_embeddings.embedding
        return outputs.replace(scores=VocabularyScores(outputs.last_hidden_state, table, bias))
