"""GPT: generative pre-training of a decoder (Radford et al. 2018; openai/finetune-transformer-lm).

A transformer that reads from left to right learns to predict the next token. One table holds the embeddings of tokens,
of the special tokens of the tasks and of positions. It is also the output layer:

    x_t = table[token_t] + table[V + t]
    L times:  x = norm(x + attention(x, x up to each));  x = norm(x + feed_forward(x))
    next token:  softmax(table[:V] . x_t)
    a task:      softmax(W . x_t) at the row's last token, extract

Each sum is normalised, and there is no further norm at the end. In training, dropout is applied to the whole table
before the lookup of tokens. A dropped element is 0 everywhere in that step, also in the output layer (train.py,
`model`).

Deviation: the scores are over the V tokens, as in the paper and in transformers. The released code also has the rows of
the positions in its softmax, although no target is ever a position.
Deviation: a label's score has no bias, as in the paper and in transformers; the released code has one (`clf`).
Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import read_rows
from plmjax.layers.stack import stack
from plmjax.layers.words.embeddings import Embedding, check_ids
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.decoder import (
    DECODER_TEMPLATE,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderForMultipleChoice,
    DecoderForSequenceClassification,
    DecoderHeadOutput,
    DecoderOutput,
    decoder_cache,
    read_to_the_end,
)
from plmjax.models.families.task_heads import QuestionAnswering


@dataclasses.dataclass(frozen=True)
class GptConfig(DecoderConfig):
    """Sizes of a GPT; the defaults are those of the published model."""

    both_orders: bool = False
    """True to read a pair in both orders and to label it by the sum of both hidden states, for tasks in which the order
    does not matter.
    """

    base = Size("The published model: 116,534,784 parameters.")
    tiny = Size("Two layers of 128.", n_embd=128, n_layer=2, n_head=2)


class GptLayer(nn.Module):
    """Masked self-attention, then feed-forward; each is followed by dropout, the residual sum and a norm."""

    config: GptConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, cache: KeyValueCache | None, layer: jax.Array
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Map [B T D] to [B T D], and to the cache with the layer's keys and values of these tokens."""
        config, execution, init = self.config, self.execution, self.config.initializer
        norm = functools.partial(LayerNorm, config.layer_norm_epsilon, execution.dtype)
        attention_norm, feed_forward_norm = norm(name="attention_layer_norm"), norm(name="feed_forward_layer_norm")
        sizes = config.n_embd, config.n_head
        attention = MultiHeadAttention(*sizes, config.attn_pdrop, init, execution, name="attention")
        feed_forward = FeedForward(config.inner_size, config.activation_function, init, execution, name="feed_forward")
        attend = functools.partial(attention.attend, deterministic=self.deterministic)
        dropout = functools.partial(Dropout(config.resid_pdrop), deterministic=self.deterministic)

        key_values, cache = with_past(attention.key_values(x), cache, layer)
        x = shard_hidden(attention_norm(x + dropout(attend(x, key_values, mask_terms))))
        return shard_hidden(feed_forward_norm(x + dropout(feed_forward(x)))), cache


class GptModel(nn.Module):
    """The table and L layers whose parameters are stacked [L ...] under `layers`."""

    config: GptConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        prefix_lengths: jax.Array | None = None,
        cache: KeyValueCache | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> DecoderOutput:
        """Read rows of tokens, or further tokens of the rows in a cache.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            positions: int [B T], from 0 in every sequence; by default 0..T-1, or the positions after the cache.
            segment_ids: int [B T], the packed sequence of each token, 0 for padding; not with a cache.
            prefix_lengths: int [B], the number of first tokens that every token of the row sees (the prefix LM).
            cache: the tokens before these, with capacity for T more.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`).

        Raises:
            UserError: the rows are longer than the position table.
            ValueError: the inputs do not all have the shape [B T], or segments are given with a cache.
        """
        config, execution = self.config, self.execution
        rows = read_rows(
            config,
            input_ids,
            attention_mask,
            positions=positions,
            segment_ids=segment_ids,
            prefix_lengths=prefix_lengths,
            cache=cache,
        )

        tokens = config.vocab_size
        check_ids(input_ids, tokens, f"the {tokens} tokens of the table")
        check_ids(rows.positions, config.n_positions, f"the {config.n_positions} positions of the table")
        table = Embedding(tokens + config.n_positions, config.n_embd, "vocab", config.initializer, name="table")
        kept = Dropout(config.embd_pdrop, axes=("vocab",))(table.embedding, deterministic)
        x = jnp.take(kept, input_ids, axis=0, mode="clip")
        x += jnp.take(kept, tokens + rows.positions, axis=0, mode="clip")
        x = shard_hidden(x.astype(execution.dtype))

        def body(layer: GptLayer, carried: tuple[jax.Array, Any], number: jax.Array) -> tuple[Any, Any]:
            x, cache = layer(carried[0], rows.mask_terms, carried[1], number)
            return (x, cache), x if output_hidden_states else None

        layers, numbers = GptLayer(config, execution, deterministic, name="layers"), jnp.arange(config.n_layer)
        with collect(output_attentions) as attentions:
            (last, cache), states = stack(
                body, layers, config.n_layer, execution=execution, x=(x, rows.cache), inputs=numbers
            )
        return DecoderOutput(
            last_hidden_state=last,
            hidden_states=jnp.concatenate([x[None], states]) if output_hidden_states else None,
            scores=VocabularyScores(last, kept[:tokens]),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
            attentions=attentions.get(OWN),
        )


class GptForCausalLM(DecoderForCausalLM):
    """GPT, whose own table is the output layer."""

    config: GptConfig


class GptForSequenceClassification(DecoderForSequenceClassification):
    """GPT with a linear layer on the last token of a row, or of a pair in both orders."""

    config: GptConfig

    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> DecoderHeadOutput:
        """Take and return the same as the base class. A pair in both orders is int [B 2 T].

        Its logits are [B 2 labels] or [B 2 K labels]. They are computed from the sum of the hidden states of both
        orders, and are the same for each order.
        """
        if input_ids.ndim == 2:
            return super().__call__(input_ids, deterministic=deterministic, **inputs)
        output, last = read_to_the_end(self.encoder, input_ids, deterministic=deterministic, **inputs)
        logits = self.score(jnp.sum(last, 1, keepdims=True), deterministic)
        return output.replace(logits=jnp.broadcast_to(logits, (*last.shape[:-1], self.num_labels)))


class GptForMultipleChoice(DecoderForMultipleChoice):
    """GPT with a linear layer on the last token of every choice."""

    config: GptConfig


def _parts(config: GptConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the table and each layer."""
    layers = (ParameterGroup(("gpt/layers",), layer) for layer in range(config.depth))
    return ParameterGroup(("gpt/table",)), *layers


SYSTEM = declare(
    System(
        GptConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: GptForCausalLM,
            Purpose.CAUSAL_LM: GptForCausalLM,
            Purpose.SEQ2SEQ: GptForCausalLM,
            Purpose.ENCODING: GptModel,
            Purpose.EMBEDDING: GptModel,
            Purpose.SEQUENCE_CLASSIFICATION: GptForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: GptForMultipleChoice,
            Purpose.QUESTION_ANSWERING: QuestionAnswering,
        },
        name="gpt",
        returns=("scores",),
        template=lambda config: dataclasses.replace(DECODER_TEMPLATE, both_orders=config.both_orders),
        parts=_parts,
        cache=decoder_cache,
        token_table="gpt/table/embedding",  # its rows of positions follow those of the tokens
    )
)
