"""BERT: deep bidirectional transformers (Devlin et al., NAACL 2019, arXiv 1810.04805; google-research/bert).

A transformer encoder reads the whole text, on both sides of every token. It learns two tasks. The masked language model
predicts masked tokens from the tokens around them. Next sentence prediction decides whether one sentence follows
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
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS, FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.stack import stack_states
from plmjax.layers.tokens import check_token_inputs, first_tokens, gather_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.encoder import (
    EncoderConfig,
    EncoderForMultipleChoice,
    EncoderForSequenceClassification,
    EncoderOutput,
    encoder_parts,
    encoder_sizes,
    encoder_template,
)
from plmjax.models.families.task_heads import TOKEN_HEADS


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
    tinybert_4 = Size(
        "TinyBERT of 4 layers (Jiao et al., arXiv 1909.10351): 14,350,248 parameters without its pretraining heads.",
        hidden_act="gelu",
        **encoder_sizes(4, 312, 12) | {"intermediate_size": 1200},
    )
    tinybert_6 = Size(
        "TinyBERT of 6 layers: 66,955,008 parameters without its pretraining heads.",
        hidden_act="gelu",
        **encoder_sizes(6, 768, 12),
    )


class BertEmbeddings(nn.Module):
    """norm(words + positions + types); each table has `features` columns."""

    config: EncoderConfig
    features: int
    execution: Execution

    def setup(self) -> None:
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
        """Map token ids, types and positions, int [B T] each, to [B T features]; the default type is 0."""
        token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = self.layer_norm(x + self.token_type_embeddings(token_type_ids))
        return shard_hidden(self.dropout(x, deterministic))


class BertLayer(nn.Module):
    """Self-attention, then feed-forward; each is followed by dropout, the residual sum and a norm."""

    config: EncoderConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, *seen: Any) -> jax.Array:
        """Map [B T D] to [B T D]; `seen` are the other arguments of `attention`."""
        config, execution, init = self.config, self.execution, self.config.initializer
        norm = functools.partial(LayerNorm, config.layer_norm_eps, execution.dtype)
        attention_norm, feed_forward_norm = norm(name="attention_layer_norm"), norm(name="feed_forward_layer_norm")
        feed_forward = FeedForward(self.inner_size, config.hidden_act, init, execution, name="feed_forward")
        dropout = functools.partial(Dropout(config.hidden_dropout_prob), deterministic=self.deterministic)

        x = shard_hidden(attention_norm(x + self.drop_attention_output(self.attention(x, *seen), dropout)))
        return shard_hidden(feed_forward_norm(x + dropout(feed_forward(x))))

    def attention(self, x: jax.Array, mask_terms: MaskTerms) -> jax.Array:
        """Attend within rows, [B T D] -> [B T D]; a system with another attention overrides this."""
        config, rate = self.config, self.config.attention_probs_dropout_prob
        sizes, init = (config.hidden_size, self.heads), config.initializer
        attention = MultiHeadAttention(*sizes, rate, init, self.execution, config.head_size, name="attention")
        return attention(x, x, mask_terms, deterministic=self.deterministic)

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return self.config.num_attention_heads

    @property
    def inner_size(self) -> int:
        """Inner size of the feed-forward network."""
        return self.config.intermediate_size

    def drop_attention_output(self, x: jax.Array, dropout: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Apply dropout to the output of attention, [B T D]; a system without this dropout overrides this."""
        return dropout(x)


class BertEncoder(nn.Module):
    """L layers whose parameters are stacked [L ...] under `layers`.

    layer: class of the layers, with the fields of `BertLayer`; it maps [B T D] and a `MaskTerms` to [B T D].
    """

    config: EncoderConfig
    execution: Execution
    layer: ClassVar[Callable[..., nn.Module]] = BertLayer

    @nn.compact
    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map [B T D] to [B T D] and, if requested, all hidden states [L+1 B T D], the input first."""

        def apply(layer: nn.Module, x: jax.Array, _: None) -> jax.Array:
            return layer(x, mask_terms)

        depth, execution = self.config.num_hidden_layers, self.execution
        layers = self.layer(self.config, execution, deterministic, name="layers")
        return stack_states(apply, layers, depth, execution=execution, x=x, output_hidden_states=output_hidden_states)


class BertModel(nn.Module):
    """Embeddings, encoder and, unless `pooling` is off, the pooler tanh(W x_[CLS] + b).

    A system that changes only a part of this model overrides `encoder_class`, `setup`, `position_rows`, `embed` or
    `pool`.
    """

    config: EncoderConfig
    execution: Execution = Execution()
    pooling: bool = True
    encoder_class: ClassVar[Callable[..., nn.Module]] = BertEncoder

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.embeddings = BertEmbeddings(config, config.hidden_size, execution)
        self.encoder = self.encoder_class(config, execution)
        if self.pooling:
            self.pooler = Projection((config.hidden_size,), ("embed", "mlp"), config.initializer, execution.dtype)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
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
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`).

        Raises:
            UserError: the rows are longer than the position table.
            ValueError: the inputs do not all have the shape [B T].
        """
        longest, option = self.config.longest, self.config.option("longest")
        check_token_inputs(longest, option, input_ids, attention_mask, token_type_ids, positions, segment_ids)
        mask_terms = MaskTerms.of_rows(attention_mask, segment_ids).also(*self.config.windows)
        rows = self.position_rows(input_ids, positions)
        x = self.embed(input_ids, token_type_ids, rows, deterministic=deterministic)
        with collect(output_attentions) as attentions:
            x, hidden_states = self.encoder(
                x, mask_terms, deterministic=deterministic, output_hidden_states=output_hidden_states
            )
        pooled = self.pool(first_tokens(x, cls_positions)) if self.pooling else None
        return EncoderOutput(x, hidden_states, pooled, attentions=attentions.get(OWN))

    def position_rows(self, input_ids: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Return the row of the position table for every token, int [B T]."""
        return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape) if positions is None else positions

    def embed(self, *inputs: jax.Array | None, deterministic: bool) -> jax.Array:
        """Map the arguments of `BertEmbeddings` to the input of the encoder."""
        return self.embeddings(*inputs, deterministic=deterministic)

    def pool(self, x: jax.Array) -> jax.Array:
        """Map hidden states of first tokens to the vectors that represent their sequences, [... D] -> [... D]."""
        return jnp.tanh(self.pooler(x))


class MaskedLanguageModelHead(nn.Module):
    """words . norm(activation(W x + b)) + c, the logits of the vocabulary.

    W projects to the embedding size of the word table.
    """

    config: EncoderConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, words: Embedding) -> jax.Array:
        """Map [B P D] and the word table to float32 [B P V].

        The head computes with B P as one axis, as google-research/bert does (`gather_indexes` in run_pretraining.py).
        With two axes libtpu takes minutes to compile the gradient of the scores.
        """
        config, dtype = self.config, self.execution.dtype
        rows = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1])
        x = Projection((self.width(words),), ("embed", "mlp"), config.initializer, dtype, name="transform")(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(ACTIVATIONS[config.hidden_act](x))
        zeros = as_bias(nn.initializers.zeros_init(), ("vocab",))
        logits = self.scores(x, words) + self.param("bias", zeros, (config.vocab_size,))
        return nn.with_logical_constraint(logits.reshape(*rows, -1), ("batch", "length", "vocab"))

    def width(self, words: Embedding) -> int:
        """Return the number of input features of `scores`."""
        return words.features

    def scores(self, x: jax.Array, words: Embedding) -> jax.Array:
        """Map features [BP E] to float32 [BP V]; a system with another output layer overrides this and `width`."""
        return words.attend(x)


class BertForMaskedLM(nn.Module):
    """The encoder, under the name of its system, and the masked language model's head; `pooling` adds a pooler.

    head: class of the head; its arguments are a config and an execution.
    """

    config: EncoderConfig
    execution: Execution = Execution()
    pooling: ClassVar[bool] = False
    head: ClassVar[Callable[..., nn.Module]] = MaskedLanguageModelHead

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=self.pooling)
        self.masked_language_model = self.head(self.config, self.execution)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> EncoderOutput:
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
        super().setup()
        init, dtype = self.config.initializer, self.execution.dtype
        self.next_sentence = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `BertForMaskedLM`, with `seq_relationship_logits`."""
        output = super().__call__(input_ids, **inputs)
        return output.replace(seq_relationship_logits=self.next_sentence(output.pooler_output))


class BertForNextSentencePrediction(nn.Module):
    """BERT with the next sentence head alone."""

    config: EncoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        init, dtype = self.config.initializer, self.execution.dtype
        self.encoder = self.config.module(Purpose.ENCODING, self.execution, pooling=True)
        self.next_sentence = Projection((2,), ("embed", None), init, dtype, logits=True)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Take and return the same as `BertModel`, with `seq_relationship_logits`."""
        output = self.encoder(input_ids, **inputs)
        return output.replace(seq_relationship_logits=self.next_sentence(output.pooler_output))


class BertForSequenceClassification(EncoderForSequenceClassification):
    """BERT with a linear layer on the pooled [CLS]."""

    config: BertConfig


class BertForMultipleChoice(EncoderForMultipleChoice):
    """BERT with a linear layer on the pooled [CLS] of every choice."""

    config: BertConfig


SYSTEM = declare(
    System(
        BertConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: BertForPreTraining,
            Purpose.MASKED_TOKENS: BertForMaskedLM,
            Purpose.ENCODING: functools.partial(BertModel, pooling=False),
            Purpose.EMBEDDING: functools.partial(BertModel, pooling=False),
            Purpose.SEQUENCE_CLASSIFICATION: BertForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: BertForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="bert",
        template=encoder_template,
        parts=encoder_parts,
    )
)
