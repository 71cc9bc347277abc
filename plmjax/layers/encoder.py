"""The bidirectional encoder that BERT introduced and that RoBERTa, ALBERT and ELECTRA keep.

    x = norm(words[input_ids] + positions[0..T) + types[token_type_ids])
    x = norm(x + attention(x, x, x));  x = norm(x + feed_forward(x))

Normalisation comes after each sum (Vaswani et al., arXiv 1706.03762; Devlin et al., arXiv 1810.04805). What differs
from system to system, the sizes, the positions, what layers share, the heads, stands in the systems' own files.
"""

import dataclasses
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.errors import UserError, nearest, quoted
from plmjax.layers.attention import MultiHeadAttention, padding_bias, segment_bias
from plmjax.layers.dropout import Dropout
from plmjax.layers.embeddings import Embedding
from plmjax.layers.execution import Execution
from plmjax.layers.feed_forward import ACTIVATIONS, FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.stack import stack


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Sizes of an encoder, named as in transformers' config.json; the defaults are BERT-Base, uncased.

    Raises:
        UserError: sizes that do not fit each other, or an unknown activation.
    """

    vocab_size: int = 30522
    """Tokens of the vocabulary."""
    hidden_size: int = 768
    """Features of a token, D."""
    num_hidden_layers: int = 12
    """Layers, L."""
    num_attention_heads: int = 12
    """Attention heads, N."""
    intermediate_size: int = 3072
    """Features inside the feed-forward network, F."""
    hidden_act: str = "gelu_new"
    """gelu_new (tanh form), gelu (exact) or relu."""
    hidden_dropout_prob: float = 0.1
    """Dropout of the embeddings and of each sublayer's output."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout of attention probabilities."""
    max_position_embeddings: int = 512
    """Longest sequence."""
    type_vocab_size: int = 2
    """Kinds of segment: first and second text."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution that is cut at two of them to draw weights."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalisation."""
    pad_token_id: int = 0
    """Id that fills rows; kept for transformers, attention goes by the mask."""
    bos_token_id: int | None = None
    """Id that begins a text where a decoder would write one; kept for transformers, nothing here goes by it."""
    eos_token_id: int | None = None
    """Id that ends such a text; kept as well."""

    def __post_init__(self) -> None:
        """Checks what no later shape error would explain."""
        sizes = ("vocab_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size")
        for name in sizes:
            if getattr(self, name) < 1:
                raise UserError(f"Expected --model.{name} of at least 1, found {getattr(self, name)}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"Expected --model.{name} from 0 to below 1, found {getattr(self, name)}.")
        if self.initializer_range < 0:
            raise UserError(f"Expected --model.initializer_range of at least 0, found {self.initializer_range}.")
        if not self.layer_norm_eps > 0:
            raise UserError(f"Expected --model.layer_norm_eps above 0, found {self.layer_norm_eps}.")
        if self.hidden_size < 1:
            raise UserError(f"Expected --model.hidden_size of at least 1, found {self.hidden_size}.")
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"Expected a hidden size that divides by the heads, found {self.hidden_size} and "
                f"{self.num_attention_heads} heads; change --model.hidden_size or --model.num_attention_heads."
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(f"Unknown activation {quoted(self.hidden_act)}; {nearest(self.hidden_act, ACTIVATIONS)}")

    @classmethod
    def _sized(cls, layers: int, hidden: int, heads: int, overrides: dict[str, Any], **defaults: Any) -> Self:
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        return cls(**(sizes | {"intermediate_size": 4 * hidden} | defaults | overrides))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_position_embeddings

    @property
    def head_dropout(self) -> float:
        """Dropout of what a downstream task's head is given."""
        return self.hidden_dropout_prob

    @property
    def pair_separators(self) -> int:
        """Separator tokens between the two texts of a pair."""
        return 1

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        """Model FLOPs of the layers in one training step: matrix products, backward = 2 x forward.

        6 (L (4 D^2 + 2 D F) + 2 L T D) a token.
        """
        size = self.hidden_size
        layer = 4 * size**2 + 2 * size * self.intermediate_size + 2 * sequence_length * size
        return 6.0 * batch_size * sequence_length * self.num_hidden_layers * layer

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Model FLOPs of one training step (backward = 2 x forward) with `predictions` gathered positions a row.

        Matrix products only: 6 (L (4 D^2 + 2 D F) + 2 L T D) a token and 6 (D^2 + D V) a prediction.
        """
        head = self.hidden_size**2 + self.hidden_size * self.vocab_size
        return self.layers_flops(batch_size, sequence_length) + 6.0 * batch_size * predictions * head

    @property
    def initializer(self) -> Initializer:
        """Normal, cut at two standard deviations; as in TensorFlow the cut is not made up for (0.88 x the range)."""
        return nn.initializers.truncated_normal(self.initializer_range)


@dataclasses.dataclass(frozen=True)
class ClassifierDropoutConfig(EncoderConfig):
    """Sizes of an encoder whose heads of downstream tasks may have a dropout of their own."""

    classifier_dropout: float | None = None
    """Dropout of what a downstream task's head is given; None is that of the embeddings and sublayers."""

    def __post_init__(self) -> None:
        """Checks what no later shape error would explain."""
        super().__post_init__()
        if not 0 <= self.head_dropout < 1:
            raise UserError(f"Expected --model.classifier_dropout from 0 to below 1, found {self.classifier_dropout}.")

    @property
    def head_dropout(self) -> float:
        """The heads' own rate where there is one."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout


@flax.struct.dataclass
class EncoderOutput:
    """What the modules of an encoder return; fields that a module does not compute are None.

    last_hidden_state: [B T D].
    hidden_states: [L+1 B T D], the embeddings first; only when asked for.
    pooler_output: [B D], or [B K D] where `cls_positions` are given.
    logits: float32; masked language model [B T V], or [B P V] where `masked_positions` are given;
        classification of sequences [B labels] (or [B K labels]), of tokens [B T labels]; replaced tokens [B T];
        multiple choice [B C] (or [B C K]).
    seq_relationship_logits: float32 [B 2] (or [B K 2]), of BERT; class 0 says that the second text follows the first.
    sop_logits: float32 [B 2] (or [B K 2]), of ALBERT; class 0 says that the two texts stand in their order.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    pooler_output: jax.Array | None = None
    logits: jax.Array | None = None
    seq_relationship_logits: jax.Array | None = None
    sop_logits: jax.Array | None = None


def gather_positions(x: jax.Array, positions: jax.Array | None) -> jax.Array:
    """Chosen tokens of each row: [B T D], int [B P] -> [B P D]; all of them without positions."""
    return x if positions is None else jnp.take_along_axis(x, positions[..., None], axis=1, mode="clip")


def first_tokens(x: jax.Array, cls_positions: jax.Array | None) -> jax.Array:
    """The token that stands for its sequence: [B T D] -> [B D], or [B K D] where packed sequences begin int [B K]."""
    return x[:, 0] if cls_positions is None else gather_positions(x, cls_positions)


def attention_bias(attention_mask: jax.Array | None, segment_ids: jax.Array | None) -> jax.Array | None:
    """What is added to attention scores, float32, broadcasting to [B N T T]; None hides nothing."""
    bias = None if segment_ids is None else segment_bias(segment_ids)
    if attention_mask is None:
        return bias
    padding = padding_bias(attention_mask)
    return padding if bias is None else bias + padding


def check_inputs(longest: int, input_ids: jax.Array, *others: jax.Array | None) -> None:
    """Raises ValueError for inputs of unequal shapes and UserError for rows of more than `longest` tokens."""
    if input_ids.ndim != 2 or any(x is not None and x.shape != input_ids.shape for x in others):
        shapes = [x.shape for x in (input_ids, *others) if x is not None]
        raise ValueError(f"Expected token inputs that all have the shape [B T], found {shapes}.")
    if input_ids.shape[1] > longest:
        raise UserError(
            f"Expected rows of at most {longest} tokens, the positions of the model, found {input_ids.shape[1]}; "
            "shorten the rows or set --model.max_position_embeddings."
        )


class InputEmbeddings(nn.Module):
    """norm(words + positions + types), each a table of rows of `features` numbers."""

    config: EncoderConfig
    features: int
    execution: Execution

    def setup(self) -> None:
        """Three tables and a norm."""
        config, dtype = self.config, self.execution.dtype
        size, init = self.features, config.initializer
        self.word_embeddings = Embedding(config.vocab_size, size, "vocab", init, dtype)
        self.position_embeddings = Embedding(config.max_position_embeddings, size, None, init, dtype)
        self.token_type_embeddings = Embedding(config.type_vocab_size, size, None, init, dtype)
        self.layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array | None, positions: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Three int [B T] -> [B T features]; without token types all are of type 0."""
        token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = self.layer_norm(x + self.token_type_embeddings(token_type_ids))
        return nn.with_logical_constraint(self.dropout(x, deterministic), ("batch", "length", "embed"))


class EncoderLayer(nn.Module):
    """One encoder layer: two sublayers, each followed by dropout, the residual sum and a norm."""

    config: EncoderConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array | None) -> jax.Array:
        """[B T D], attention bias broadcast to [B N T T] -> [B T D]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        dropout = Dropout(config.hidden_dropout_prob)
        attention = MultiHeadAttention(
            config.num_attention_heads, config.attention_probs_dropout_prob, init, dtype, name="attention"
        )
        feed_forward = FeedForward(config.intermediate_size, config.hidden_act, init, dtype, name="feed_forward")

        attended = dropout(attention(x, x, bias, deterministic=self.deterministic), self.deterministic)
        x = LayerNorm(config.layer_norm_eps, dtype, name="attention_layer_norm")(x + attended)
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        transformed = dropout(feed_forward(x), self.deterministic)
        x = LayerNorm(config.layer_norm_eps, dtype, name="feed_forward_layer_norm")(x + transformed)
        return nn.with_logical_constraint(x, ("batch", "length", "embed"))


class Encoder(nn.Module):
    """L layers whose parameters are stacked [L ...] under `layers`."""

    config: EncoderConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, x: jax.Array, bias: jax.Array | None, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """[B T D] -> [B T D] and, when asked for, [L+1 B T D] with the input first."""
        layer = EncoderLayer(self.config, self.execution, deterministic, name="layers")
        last, outputs = stack(layer, self.config.num_hidden_layers, self.execution, output_hidden_states, x, bias)
        return last, jnp.concatenate([x[None], outputs]) if output_hidden_states else None


class EncoderModel(nn.Module):
    """Embeddings, encoder and, unless `pooling` is off, the pooler tanh(W x_[CLS] + b); a system makes the parts.

    `setup` of a subclass names them `embeddings`, `encoder` and, with `pooling`, `pooler`.
    """

    config: EncoderConfig
    execution: Execution = Execution()
    pooling: bool = True

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encodes rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            token_type_ids: int [B T], 0 for the first text of a pair, 1 for the second; 0 by default.
            positions: int [B T], from 0 in every sequence; 0..T-1 by default.
            segment_ids: int [B T], which of the packed sequences a token belongs to, 0 for padding; tokens attend to
                each other iff theirs are equal and above 0.
            cls_positions: int [B K], where the packed sequences begin; the pooler reads position 0 without them.
            deterministic: without dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: whether to return the output of every layer.

        Raises:
            UserError: the rows are longer than the position table.
            ValueError: an input's shape does not fit the others'.
        """
        check_inputs(self.config.longest, input_ids, attention_mask, token_type_ids, positions, segment_ids)
        bias = attention_bias(attention_mask, segment_ids)
        rows = self.position_rows(input_ids, positions)
        x = self.embed(input_ids, token_type_ids, rows, deterministic=deterministic)
        x, hidden_states = self.encoder(x, bias, deterministic=deterministic, output_hidden_states=output_hidden_states)
        pooled = self.pool(first_tokens(x, cls_positions)) if self.pooling else None
        return EncoderOutput(last_hidden_state=x, hidden_states=hidden_states, pooler_output=pooled)

    def position_rows(self, input_ids: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Which row of the position table every token takes, int [B T]."""
        return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape) if positions is None else positions

    def embed(self, *inputs: jax.Array | None, deterministic: bool) -> jax.Array:
        """Arguments of `InputEmbeddings` -> what the encoder is given, [B T D]."""
        return self.embeddings(*inputs, deterministic=deterministic)

    def pool(self, x: jax.Array) -> jax.Array:
        """First tokens -> what stands for their sequences."""
        return jnp.tanh(self.pooler(x))


class MaskedLanguageModelHead(nn.Module):
    """words . norm(activation(W x + b)) + c, the scores of all tokens; W maps to the features of the word table."""

    config: EncoderConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, words: Embedding) -> jax.Array:
        """[B P D] and the word table -> float32 [B P V]."""
        config, dtype = self.config, self.execution.dtype
        x = Projection((words.features,), ("embed", "mlp"), config.initializer, dtype, name="transform")(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(ACTIVATIONS[config.hidden_act](x))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",))
        logits = words.attend(x) + self.param("bias", zeros, (config.vocab_size,))
        return nn.with_logical_constraint(logits, ("batch", "length", "vocab"))


class EncoderForMaskedLM(nn.Module):
    """A system's encoder, under the system's name, with the masked language model's head; `pooling` adds a pooler."""

    config: EncoderConfig
    execution: Execution = Execution()
    pooling: ClassVar[bool] = False

    def setup(self) -> None:
        """The encoder and the head."""
        self.encoder = self.config.encoder(self.execution, pooling=self.pooling)
        self.masked_language_model = MaskedLanguageModelHead(self.config, self.execution)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
        """As the encoder; `masked_positions` int [B P] limits the logits over the vocabulary to these tokens."""
        output = self.encoder(input_ids, **inputs)
        hidden = gather_positions(output.last_hidden_state, masked_positions)
        return output.replace(logits=self.masked_language_model(hidden, self.encoder.embeddings.word_embeddings))


class EncoderForSequenceClassification(nn.Module):
    """A system's encoder with a linear layer on the pooled [CLS] after dropout; one label makes it a regression."""

    config: EncoderConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """The encoder, dropout and the classifier."""
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.encoder(self.execution, pooling=True)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((self.num_labels,), ("embed", None), config.initializer, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> EncoderOutput:
        """As the encoder, with logits [B labels]."""
        output = self.encoder(input_ids, deterministic=deterministic, **inputs)
        return output.replace(logits=self.classifier(self.dropout(output.pooler_output, deterministic)))


class EncoderForMultipleChoice(nn.Module):
    """A system's encoder with a linear layer on the pooled [CLS] after dropout that gives every choice a number."""

    config: EncoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """The encoder, dropout and the classifier."""
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.encoder(self.execution, pooling=True)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((1,), ("embed", None), config.initializer, dtype, logits=True)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        """[... D] -> float32 [... 1]."""
        return self.classifier(self.dropout(pooled, deterministic))

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        **inputs: jax.Array | None,
    ) -> EncoderOutput:
        """As the encoder, the C choices of a question side by side: int [B C T] -> logits [B C].

        With `cls_positions` int [B C K] logits are [B C K]. Hidden states are those of the rows, [B C] as one axis.
        """
        rows = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items() if x is not None}
        output = self.encoder(
            input_ids.reshape(-1, input_ids.shape[-1]),
            **rows,
            deterministic=deterministic,
            output_hidden_states=output_hidden_states,
        )
        scores = self.score(output.pooler_output, deterministic)[..., 0]
        return output.replace(logits=scores.reshape(*input_ids.shape[:-1], *scores.shape[1:]))
