"""BERT: deep bidirectional transformers (Devlin et al., NAACL 2019, arXiv 1810.04805; google-research/bert).

A transformer encoder reads the whole text, on both sides of every token. It learns two tasks. The masked language model
predicts hidden tokens from the tokens around them. Next sentence prediction decides whether one sentence follows
another:

    x = norm(words[input_ids] + positions[0..T) + types[token_type_ids])
    L times:  x = norm(x + attention(x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    next sentence:  softmax(W' tanh(W'' x_[CLS] + b'') + b')

Each sum is normalised. The output layer of the masked language model is the word table itself.

Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself; the paper pads.
Deviation: `hidden_act` defaults to GELU's tanh form, as in the released code; transformers' default is the exact one.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.contracts.visibility import Visibility
from plmjax.errors import FROM_0, FROM_1, SHARE, UserError, check_ranges, nearest, quoted
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS, FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs, first_tokens, gather_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.task_heads import TOKEN_HEADS


def encoder_sizes(layers: int, hidden: int, heads: int) -> dict[str, int]:
    """Return the fields of an encoder's size, with a feed-forward network four times as wide."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return sizes | {"intermediate_size": 4 * hidden}


@dataclasses.dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """Sizes of an encoder, named as in transformers' config.json; the defaults are BERT-Base, uncased.

    Raises:
        UserError: sizes that do not fit each other, or an unknown activation.
    """

    vocab_size: int = 30522
    """Vocabulary size."""
    hidden_size: int = 768
    """Hidden size, D."""
    num_hidden_layers: int = 12
    """Number of layers, L."""
    num_attention_heads: int = 12
    """Number of attention heads, N."""
    intermediate_size: int = 3072
    """Inner size of the feed-forward network, F."""
    hidden_act: str = "gelu_new"
    """Activation: gelu_new (tanh form), gelu (exact) or relu."""
    hidden_dropout_prob: float = 0.1
    """Dropout rate of the embeddings and of each sublayer's output."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout rate of attention probabilities."""
    max_position_embeddings: int = 512
    """Maximum sequence length."""
    type_vocab_size: int = 2
    """Number of token types: first and second text."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights, before truncation at two standard deviations.
    """
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalisation."""
    pad_token_id: int = 0
    """Padding token id; transformers needs it, attention reads the mask instead."""
    bos_token_id: int | None = None
    """Token id at the beginning of a decoder's text; transformers needs it, nothing here reads it."""
    eos_token_id: int | None = None
    """Token id at the end of a decoder's text; as `bos_token_id`."""

    classifier_dropout: ClassVar[float | None] = None
    """Dropout rate of the heads of downstream tasks; systems in which it may differ from the other rate make it a
    field.
    """
    field_names: ClassVar[dict[str, str]] = {
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "longest": "max_position_embeddings",
        "padding_token": "pad_token_id",
    }

    def __post_init__(self) -> None:
        """Check the settings that no later shape error would explain."""
        sizes = ("vocab_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size")
        check_ranges("model", self, **dict.fromkeys(sizes, FROM_1), hidden_size=FROM_1, initializer_range=FROM_0)
        check_ranges("model", self, hidden_dropout_prob=SHARE, attention_probs_dropout_prob=SHARE)
        if self.classifier_dropout is not None:
            check_ranges("model", self, classifier_dropout=SHARE)
        if not self.layer_norm_eps > 0:
            raise UserError(f"Expected --model.layer_norm_eps above 0, found {self.layer_norm_eps}; change it.")
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"Expected a hidden size that divides by the heads, found {self.hidden_size} and "
                f"{self.num_attention_heads} heads; change --model.hidden_size or --model.num_attention_heads."
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(
                f"Expected a known activation, found {quoted(self.hidden_act)}; {nearest(self.hidden_act, ACTIVATIONS)}"
            )

    def with_dropout(self, rate: float) -> Self:
        """Return the same sizes with another dropout rate of embeddings, sublayers and attention probabilities."""
        return dataclasses.replace(self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    @property
    def head_dropout(self) -> float:
        """Dropout rate of the input of a downstream task's head: `classifier_dropout` if it is set."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        """Return the model FLOPs of the layers in one training step: matrix products, backward = 2 x forward.

        6 (L (4 D^2 + 2 D F) + 2 L T D) per token.
        """
        size = self.hidden_size
        layer = 4 * size**2 + 2 * size * self.intermediate_size + 2 * sequence_length * size
        return 6.0 * batch_size * sequence_length * self.num_hidden_layers * layer

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` gathered positions per row. Matrix products only: 6 (L (4 D^2 + 2 D F) + 2 L T D) per
        token and 6 (D^2 + D V) per prediction.
        """
        head = self.hidden_size**2 + self.hidden_size * self.vocab_size
        return self.layers_flops(batch_size, sequence_length) + 6.0 * batch_size * predictions * head

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, truncated at two standard deviations.

        It is as in TensorFlow, so the standard deviation is 0.88 x the range.
        """
        return nn.initializers.truncated_normal(self.initializer_range)


@dataclasses.dataclass(frozen=True)
class BertConfig(EncoderConfig):
    """Sizes of a BERT; the defaults are BERT-Base, uncased.

    Arguments override the fields of a named size: `BertConfig.base(vocab_size=8192)`.
    """

    classifier_dropout: float | None = None
    """Dropout rate of the input of a downstream task's head; None is the rate of the embeddings and sublayers."""

    base = Size(
        "BERT-Base, uncased English: 110,106,428 parameters with its pretraining heads.", **encoder_sizes(12, 768, 12)
    )
    large = Size(
        "BERT-Large, uncased English: 336,226,108 parameters with its pretraining heads.", **encoder_sizes(24, 1024, 16)
    )
    base_cased = Size("BERT-Base, cased English.", vocab_size=28996, **encoder_sizes(12, 768, 12))
    large_cased = Size("BERT-Large, cased English.", vocab_size=28996, **encoder_sizes(24, 1024, 16))
    base_chinese = Size("BERT-Base, Chinese.", vocab_size=21128, **encoder_sizes(12, 768, 12))
    tiny = Size(
        "Two layers of 128 (Turc et al., arXiv 1908.08962, as are mini, small and medium).", **encoder_sizes(2, 128, 2)
    )
    mini = Size("Four layers of 256.", **encoder_sizes(4, 256, 4))
    small = Size("Four layers of 512.", **encoder_sizes(4, 512, 8))
    medium = Size("Eight layers of 512.", **encoder_sizes(8, 512, 8))


@flax.struct.dataclass
class BertOutput:
    """The output of the modules of an encoder; fields that a module does not compute are None.

    last_hidden_state: [B T D].
    hidden_states: [L+1 B T D], the embeddings first; only if requested.
    pooler_output: [B D], or [B K D] if `cls_positions` are given.
    logits: float32; masked language model [B T V], or [B P V] if `masked_positions` are given; classification of
        sequences [B labels] (or [B K labels]), of tokens [B T labels]; replaced tokens [B T]; multiple choice [B C] (or
        [B C K]).
    seq_relationship_logits: float32 [B 2] (or [B K 2]), of BERT; class 0 means that the second text follows the first.
    sop_logits: float32 [B 2] (or [B K 2]), of ALBERT; class 0 means that the two texts are in their order.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    pooler_output: jax.Array | None = None
    logits: jax.Array | None = None
    seq_relationship_logits: jax.Array | None = None
    sop_logits: jax.Array | None = None


class BertEmbeddings(nn.Module):
    """norm(words + positions + types); the rows of each table have `features` numbers."""

    config: EncoderConfig
    features: int
    execution: Execution

    def setup(self) -> None:
        """Create three tables and a norm."""
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
        """Map three int [B T] to [B T features]; without token types all are of type 0."""
        token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = self.layer_norm(x + self.token_type_embeddings(token_type_ids))
        return nn.with_logical_constraint(self.dropout(x, deterministic), ("batch", "length", "embed"))


class BertLayer(nn.Module):
    """Self-attention, then feed-forward; each is followed by dropout, the residual sum and a norm."""

    config: EncoderConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, visibility: Visibility) -> jax.Array:
        """Map [B T D] to [B T D]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        size, heads, rate = config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
        attention = MultiHeadAttention(size, heads, rate, init, self.execution, name="attention")
        attention_norm = LayerNorm(config.layer_norm_eps, dtype, name="attention_layer_norm")
        feed_forward = FeedForward(config.intermediate_size, config.hidden_act, init, dtype, name="feed_forward")
        feed_forward_norm = LayerNorm(config.layer_norm_eps, dtype, name="feed_forward_layer_norm")
        dropout = functools.partial(Dropout(config.hidden_dropout_prob), deterministic=self.deterministic)

        x = attention_norm(x + dropout(attention(x, x, visibility, deterministic=self.deterministic)))
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        x = feed_forward_norm(x + dropout(feed_forward(x)))
        return nn.with_logical_constraint(x, ("batch", "length", "embed"))


class BertEncoder(nn.Module):
    """L layers whose parameters are stacked [L ...] under `layers`."""

    config: EncoderConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, x: jax.Array, visibility: Visibility, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map [B T D] to [B T D] and, if requested, to [L+1 B T D], the input first."""

        def body(layer: BertLayer, x: jax.Array, inputs: None) -> tuple[jax.Array, jax.Array | None]:
            x = layer(x, visibility)
            return x, x if output_hidden_states else None

        layers = BertLayer(self.config, self.execution, deterministic, name="layers")
        last, states = stack(body, layers, self.config.num_hidden_layers, self.execution, x)
        return last, jnp.concatenate([x[None], states]) if output_hidden_states else None


class BertModel(nn.Module):
    """Embeddings, encoder and, unless `pooling` is off, the pooler tanh(W x_[CLS] + b).

    A system that changes only a part of this model overrides `setup`, `position_rows`, `embed` or `pool`.
    """

    config: EncoderConfig
    execution: Execution = Execution()
    pooling: bool = True

    def setup(self) -> None:
        """Create the three parts."""
        config, execution = self.config, self.execution
        self.embeddings = BertEmbeddings(config, config.hidden_size, execution)
        self.encoder = BertEncoder(config, execution)
        if self.pooling:
            self.pooler = Projection((config.hidden_size,), ("embed", "mlp"), config.initializer, execution.dtype)

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
        """Encode rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            token_type_ids: int [B T], 0 for the first text of a pair, 1 for the second; 0 by default.
            positions: int [B T], from 0 in every sequence; 0..T-1 by default.
            segment_ids: int [B T], the packed sequence of each token, 0 for padding; two tokens attend to each other
                iff their segments are equal and above 0.
            cls_positions: int [B K], the starts of the packed sequences; without them the pooler reads position 0.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.

        Raises:
            UserError: the rows are longer than the position table.
            ValueError: an input's shape does not fit the others'.
        """
        longest, option = self.config.longest, self.config.option("longest")
        check_token_inputs(longest, option, input_ids, attention_mask, token_type_ids, positions, segment_ids)
        visibility = Visibility.of_rows(attention_mask, segment_ids)
        rows = self.position_rows(input_ids, positions)
        x = self.embed(input_ids, token_type_ids, rows, deterministic=deterministic)
        x, hidden_states = self.encoder(
            x, visibility, deterministic=deterministic, output_hidden_states=output_hidden_states
        )
        pooled = self.pool(first_tokens(x, cls_positions)) if self.pooling else None
        return BertOutput(last_hidden_state=x, hidden_states=hidden_states, pooler_output=pooled)

    def position_rows(self, input_ids: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Return the row of the position table for every token, int [B T]."""
        return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape) if positions is None else positions

    def embed(self, *inputs: jax.Array | None, deterministic: bool) -> jax.Array:
        """Map the arguments of `BertEmbeddings` to the input of the encoder."""
        return self.embeddings(*inputs, deterministic=deterministic)

    def pool(self, x: jax.Array) -> jax.Array:
        """Map first tokens to the vectors that represent their sequences."""
        return jnp.tanh(self.pooler(x))


class MaskedLanguageModelHead(nn.Module):
    """words . norm(activation(W x + b)) + c, the scores of all tokens.

    W projects to the embedding size of the word table.
    """

    config: EncoderConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, words: Embedding) -> jax.Array:
        """Map [B P D] and the word table to float32 [B P V]."""
        config, dtype = self.config, self.execution.dtype
        x = Projection((words.features,), ("embed", "mlp"), config.initializer, dtype, name="transform")(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(ACTIVATIONS[config.hidden_act](x))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), ("vocab",))
        logits = words.attend(x) + self.param("bias", zeros, (config.vocab_size,))
        return nn.with_logical_constraint(logits, ("batch", "length", "vocab"))


class BertForMaskedLM(nn.Module):
    """The encoder, with the name of its system, and the masked language model's head; `pooling` adds a pooler."""

    config: EncoderConfig
    execution: Execution = Execution()
    pooling: ClassVar[bool] = False

    def setup(self) -> None:
        """Create the encoder and the head."""
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=self.pooling)
        self.masked_language_model = MaskedLanguageModelHead(self.config, self.execution)

    def __call__(self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any) -> BertOutput:
        """Take and return the same as the encoder, with logits over the vocabulary.

        `masked_positions` int [B P] limits the logits to these tokens.
        """
        output = self.encoder(input_ids, **inputs)
        hidden = gather_tokens(output.last_hidden_state, masked_positions)
        return output.replace(logits=self.masked_language_model(hidden, self.encoder.embeddings.word_embeddings))


class BertForPreTraining(BertForMaskedLM):
    """BERT with both of its pretraining heads."""

    pooling: ClassVar[bool] = True

    def setup(self) -> None:
        """Create the encoder and the two heads."""
        super().setup()
        init, dtype = self.config.initializer, self.execution.dtype
        self.next_sentence = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> BertOutput:
        """Take and return the same as `BertForMaskedLM`, with `seq_relationship_logits`."""
        output = super().__call__(input_ids, **inputs)
        return output.replace(seq_relationship_logits=self.next_sentence(output.pooler_output))


class BertForNextSentencePrediction(nn.Module):
    """BERT with the next sentence head alone."""

    config: EncoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the encoder and the head."""
        init, dtype = self.config.initializer, self.execution.dtype
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.next_sentence = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> BertOutput:
        """Take and return the same as `BertModel`, with `seq_relationship_logits`."""
        output = self.encoder(input_ids, **inputs)
        return output.replace(seq_relationship_logits=self.next_sentence(output.pooler_output))


class BertForSequenceClassification(nn.Module):
    """The encoder with dropout and a linear layer on the pooled [CLS]; with one label it is a regression."""

    config: EncoderConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """Create the encoder, dropout and the classifier."""
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((self.num_labels,), ("embed", None), config.initializer, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> BertOutput:
        """Take and return the same as the encoder, with logits [B labels]."""
        output = self.encoder(input_ids, deterministic=deterministic, **inputs)
        return output.replace(logits=self.classifier(self.dropout(output.pooler_output, deterministic)))


class BertForMultipleChoice(nn.Module):
    """The encoder with dropout and a linear layer on the pooled [CLS], which gives every choice one score."""

    config: EncoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        """Create the encoder, dropout and the classifier."""
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((1,), ("embed", None), config.initializer, dtype, logits=True)

    def score(self, pooled: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... 1]."""
        return self.classifier(self.dropout(pooled, deterministic))

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        **inputs: jax.Array | None,
    ) -> BertOutput:
        """Take and return the same as the encoder, for C adjacent choices of a question: int [B C T] -> logits [B C].

        With `cls_positions` int [B C K] logits are [B C K]. Hidden states are those of the rows, with [B C] as one
        axis.
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


def encoder_parts(config: EncoderConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, each layer, and other parts of the encoder, such as a pooler."""
    name = config.system.name
    layers = (ParameterGroup((f"{name}/encoder/layers",), layer) for layer in range(config.depth))
    return ParameterGroup((f"{name}/embeddings",)), *layers, ParameterGroup((name,))


def encoder_template(config: EncoderConfig) -> Template:
    """Return the template [CLS] A [SEP] and [CLS] A [SEP] B [SEP]."""
    return Template().with_types(config.type_vocab_size)


SYSTEM = declare(
    System(
        BertConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: BertForPreTraining,
            Purpose.MASKED_TOKENS: BertForMaskedLM,
            Purpose.ENCODING: functools.partial(BertModel, pooling=False),
            Purpose.EMBEDDING: functools.partial(BertModel, pooling=False),
            Purpose.TEXT_LABELS: BertForSequenceClassification,
            Purpose.CHOICES: BertForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="bert",
        template=encoder_template,
        parts=encoder_parts,
    )
)
