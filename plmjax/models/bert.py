"""BERT: deep bidirectional transformers (Devlin et al., NAACL 2019, arXiv 1810.04805; google-research/bert).

A transformer encoder sees the whole text, both sides of every token. It learns by restoring hidden tokens from what
surrounds them (the masked language model) and by telling whether one sentence follows another (next sentence):

    x = norm(words[input_ids] + positions[0..T) + types[token_type_ids])
    L times:  x = norm(x + attention(x, x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    next sentence:  softmax(W' tanh(W'' x_[CLS] + b'') + b')

Normalisation comes after each sum. The output layer of the masked language model is the word table itself.

Deviation: rows may hold several packed sequences (`segment_ids`), each attending to itself alone; the paper pads.
Deviation: `hidden_act` defaults to GELU's tanh form, as in the released code; transformers' default is the exact one.
"""

import dataclasses
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.errors import UserError, nearest
from plmjax.layers.attention import MultiHeadAttention, padding_bias, segment_bias
from plmjax.layers.dropout import Dropout
from plmjax.layers.embeddings import Embedding
from plmjax.layers.execution import Execution
from plmjax.layers.feed_forward import ACTIVATIONS, FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.stack import stack


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT, named as in transformers' config.json; the defaults are BERT-Base, uncased.

    The named sizes take overrides: `BertConfig.base(vocab_size=8192)`.

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

    def __post_init__(self) -> None:
        """Checks what no later shape error would explain."""
        sizes = ("vocab_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size")
        for name in sizes:
            if getattr(self, name) < 1:
                raise UserError(f"Expected --model.{name} of at least 1, found {getattr(self, name)}.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"Expected --model.{name} from 0 to below 1, found {getattr(self, name)}.")
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"Expected a hidden size that divides by the heads, found {self.hidden_size} and "
                f"{self.num_attention_heads} heads; change --model.hidden_size or --model.num_attention_heads."
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(f"Unknown activation {self.hidden_act!r}; {nearest(self.hidden_act, ACTIVATIONS)}")

    @classmethod
    def _sized(cls, layers: int, hidden: int, heads: int, overrides: dict[str, Any], **defaults: Any) -> Self:
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        return cls(**(sizes | {"intermediate_size": 4 * hidden} | defaults | overrides))

    @classmethod
    def base(cls, **overrides: Any) -> Self:
        """BERT-Base, uncased English: 110,106,428 parameters with its pretraining heads."""
        return cls._sized(12, 768, 12, overrides)

    @classmethod
    def large(cls, **overrides: Any) -> Self:
        """BERT-Large, uncased English: 336,226,108 parameters with its pretraining heads."""
        return cls._sized(24, 1024, 16, overrides)

    @classmethod
    def base_cased(cls, **overrides: Any) -> Self:
        """BERT-Base, cased English."""
        return cls._sized(12, 768, 12, overrides, vocab_size=28996)

    @classmethod
    def large_cased(cls, **overrides: Any) -> Self:
        """BERT-Large, cased English."""
        return cls._sized(24, 1024, 16, overrides, vocab_size=28996)

    @classmethod
    def base_chinese(cls, **overrides: Any) -> Self:
        """BERT-Base, Chinese."""
        return cls._sized(12, 768, 12, overrides, vocab_size=21128)

    @classmethod
    def tiny(cls, **overrides: Any) -> Self:
        """Two layers of 128 (Turc et al., arXiv 1908.08962, as are mini, small and medium)."""
        return cls._sized(2, 128, 2, overrides)

    @classmethod
    def mini(cls, **overrides: Any) -> Self:
        """Four layers of 256."""
        return cls._sized(4, 256, 4, overrides)

    @classmethod
    def small(cls, **overrides: Any) -> Self:
        """Four layers of 512."""
        return cls._sized(4, 512, 8, overrides)

    @classmethod
    def medium(cls, **overrides: Any) -> Self:
        """Eight layers of 512."""
        return cls._sized(8, 512, 8, overrides)

    def for_pretraining(self, execution: Execution) -> "BertForPreTraining":
        """The encoder with the masked language model's and the next sentence head."""
        return BertForPreTraining(self, execution)

    def for_masked_language_model(self, execution: Execution) -> "BertForMaskedLM":
        """The encoder with the masked language model's head alone."""
        return BertForMaskedLM(self, execution)

    def encoder(self, execution: Execution) -> "tuple[str, BertModel]":
        """(the name its parameters have in every other module, the encoder alone)."""
        return "bert", BertModel(self, execution, pooling=False)

    def for_sequence_classification(self, outputs: int, execution: Execution) -> "BertForSequenceClassification":
        """The module that labels whole rows, or gives each `outputs` numbers."""
        return BertForSequenceClassification(self, execution, outputs)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Model FLOPs of one training step (backward = 2 x forward) with `predictions` gathered positions a row.

        Matrix products only: 6 (L (4 D^2 + 2 D F) + 2 L T D) a token and 6 (D^2 + D V) a prediction.
        """
        size, layers = self.hidden_size, self.num_hidden_layers
        layer = 4 * size**2 + 2 * size * self.intermediate_size + 2 * sequence_length * size
        head = size**2 + size * self.vocab_size
        return 6.0 * batch_size * (sequence_length * layers * layer + predictions * head)

    @property
    def initializer(self) -> Initializer:
        """Normal, cut at two standard deviations; as in TensorFlow the cut is not made up for (0.88 x the range)."""
        return nn.initializers.truncated_normal(self.initializer_range)


@flax.struct.dataclass
class BertOutput:
    """What the BERT modules return; fields that a module does not compute are None.

    last_hidden_state: [B T D].
    hidden_states: [L+1 B T D], the embeddings first; only when asked for.
    pooler_output: [B D], or [B K D] where `cls_positions` are given.
    logits: float32; masked language model [B T V], or [B P V] where `masked_positions` are given;
        sequence classification [B labels] (or [B K labels]).
    seq_relationship_logits: float32 [B 2] (or [B K 2]); class 0 says that the second sentence follows the first.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    pooler_output: jax.Array | None = None
    logits: jax.Array | None = None
    seq_relationship_logits: jax.Array | None = None


def gather_positions(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Chosen tokens of each row: [B T D], int [B P] -> [B P D]."""
    return jnp.take_along_axis(x, positions[..., None], axis=1, mode="clip")


class BertEmbeddings(nn.Module):
    """norm(words + positions + types)."""

    config: BertConfig
    execution: Execution

    def setup(self) -> None:
        """Three tables and a norm."""
        config, dtype = self.config, self.execution.dtype
        size, init = config.hidden_size, config.initializer
        self.word_embeddings = Embedding(config.vocab_size, size, "vocab", init, dtype)
        self.position_embeddings = Embedding(config.max_position_embeddings, size, None, init, dtype)
        self.token_type_embeddings = Embedding(config.type_vocab_size, size, None, init, dtype)
        self.layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array, positions: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Three int [B T] -> [B T D]."""
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = self.layer_norm(x + self.token_type_embeddings(token_type_ids))
        return nn.with_logical_constraint(self.dropout(x, deterministic), ("batch", "length", "embed"))


class BertLayer(nn.Module):
    """One encoder layer: two sublayers, each followed by dropout, the residual sum and a norm."""

    config: BertConfig
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


class BertEncoder(nn.Module):
    """L layers whose parameters are stacked [L ...] under `layers`."""

    config: BertConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, x: jax.Array, bias: jax.Array | None, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """[B T D] -> [B T D] and, when asked for, [L+1 B T D] with the input first."""
        layer = BertLayer(self.config, self.execution, deterministic, name="layers")
        last, outputs = stack(layer, self.config.num_hidden_layers, self.execution, output_hidden_states, x, bias)
        return last, jnp.concatenate([x[None], outputs]) if output_hidden_states else None


class BertModel(nn.Module):
    """Embeddings, encoder and, unless `pooling` is off, the pooler tanh(W x_[CLS] + b)."""

    config: BertConfig
    execution: Execution = Execution()
    pooling: bool = True

    def setup(self) -> None:
        """The three parts."""
        self.embeddings = BertEmbeddings(self.config, self.execution)
        self.encoder = BertEncoder(self.config, self.execution)
        if self.pooling:
            size = self.config.hidden_size
            self.pooler = Projection((size,), ("embed", "mlp"), self.config.initializer, self.execution.dtype)

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
    ) -> BertOutput:
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
        self._check(input_ids, attention_mask, token_type_ids, positions, segment_ids)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        bias = None if segment_ids is None else segment_bias(segment_ids)
        if attention_mask is not None:
            padding = padding_bias(attention_mask)
            bias = padding if bias is None else bias + padding

        x = self.embeddings(input_ids, token_type_ids, positions, deterministic=deterministic)
        x, hidden_states = self.encoder(x, bias, deterministic=deterministic, output_hidden_states=output_hidden_states)
        pooled = None
        if self.pooling:
            first = x[:, 0] if cls_positions is None else gather_positions(x, cls_positions)
            pooled = jnp.tanh(self.pooler(first))
        return BertOutput(last_hidden_state=x, hidden_states=hidden_states, pooler_output=pooled)

    def _check(self, input_ids: jax.Array, *others: jax.Array | None) -> None:
        if input_ids.ndim != 2 or any(x is not None and x.shape != input_ids.shape for x in others):
            shapes = [x.shape for x in (input_ids, *others) if x is not None]
            raise ValueError(f"Expected token inputs that all have the shape [B T], found {shapes}.")
        limit = self.config.max_position_embeddings
        if input_ids.shape[1] > limit:
            raise UserError(
                f"Expected rows of at most {limit} tokens, the positions of the model, found {input_ids.shape[1]}; "
                "shorten the rows or set --model.max_position_embeddings."
            )


class MaskedLanguageModelHead(nn.Module):
    """words . norm(activation(W x + b)) + c."""

    config: BertConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, words: Embedding) -> jax.Array:
        """[B P D] and the word table -> float32 [B P V]."""
        config, dtype = self.config, self.execution.dtype
        x = Projection((config.hidden_size,), ("embed", "mlp"), config.initializer, dtype, name="transform")(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(ACTIVATIONS[config.hidden_act](x))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",))
        logits = words.attend(x) + self.param("bias", zeros, (config.vocab_size,))
        return nn.with_logical_constraint(logits, ("batch", "length", "vocab"))


class BertForPreTraining(nn.Module):
    """BERT with both of its pretraining heads."""

    config: BertConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """The encoder and the two heads."""
        self.bert = BertModel(self.config, self.execution)
        self.masked_language_model = MaskedLanguageModelHead(self.config, self.execution)
        self.next_sentence = Projection(
            (2,), ("embed", None), self.config.initializer, self.execution.dtype, logits=True
        )

    def __call__(self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any) -> BertOutput:
        """As `BertModel`; `masked_positions` int [B P] limits the logits over the vocabulary to these tokens."""
        output = self.bert(input_ids, **inputs)
        hidden = output.last_hidden_state
        hidden = hidden if masked_positions is None else gather_positions(hidden, masked_positions)
        return output.replace(
            logits=self.masked_language_model(hidden, self.bert.embeddings.word_embeddings),
            seq_relationship_logits=self.next_sentence(output.pooler_output),
        )


class BertForMaskedLM(nn.Module):
    """BERT with the masked language model's head alone and no pooler."""

    config: BertConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """The encoder and the head."""
        self.bert = BertModel(self.config, self.execution, pooling=False)
        self.masked_language_model = MaskedLanguageModelHead(self.config, self.execution)

    def __call__(self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any) -> BertOutput:
        """As `BertModel`; `masked_positions` int [B P] limits the logits over the vocabulary to these tokens."""
        output = self.bert(input_ids, **inputs)
        hidden = output.last_hidden_state
        hidden = hidden if masked_positions is None else gather_positions(hidden, masked_positions)
        return output.replace(logits=self.masked_language_model(hidden, self.bert.embeddings.word_embeddings))


class BertForSequenceClassification(nn.Module):
    """BERT with a linear layer on the pooled [CLS] after dropout; one label makes it a regression."""

    config: BertConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """The encoder, dropout and the classifier."""
        self.bert = BertModel(self.config, self.execution)
        self.dropout = Dropout(self.config.hidden_dropout_prob)
        self.classifier = Projection(
            (self.num_labels,), ("embed", None), self.config.initializer, self.execution.dtype, logits=True
        )

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> BertOutput:
        """As `BertModel`, with logits [B labels]."""
        output = self.bert(input_ids, deterministic=deterministic, **inputs)
        return output.replace(logits=self.classifier(self.dropout(output.pooler_output, deterministic)))
