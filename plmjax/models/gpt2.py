"""GPT-2: language models are unsupervised multitask learners (Radford et al. 2019; openai/gpt-2).

A larger GPT. Each norm stands before its sublayer, and there is one more norm at the end. So the residual sum itself is
never normalised:

    x_t = words[token_t] + positions[t]
    L times:  x = x + attention(norm(x), up to each);  x = x + feed_forward(norm(x))
    next token:  softmax(words . norm(x_t))

The initial values of the projections at the end of a sublayer are smaller by a factor of 1 / sqrt(2 L). 2 L is the
number of sums on the residual path (section 2.3).

Deviation: this factor is in the paper and in transformers, and not in the released src/model.py.
Deviation: positions are initialized with a standard deviation of 0.01, as in src/model.py; in transformers it is 0.02.
Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FROM_1, check_ranges
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import read_rows
from plmjax.layers.stack import stack
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.decoder import (
    DECODER_TEMPLATE,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderForMultipleChoice,
    DecoderForSequenceClassification,
    DecoderOutput,
    decoder_cache,
)
from plmjax.models.families.task_heads import QuestionAnswering

POSITION_DEVIATION = 0.01
"""Standard deviation of the initial positions (src/model.py, `model`)."""


@dataclasses.dataclass(frozen=True)
class Gpt2Config(DecoderConfig):
    """Sizes of a GPT-2; the defaults are those of the smallest published model.

    Arguments override the fields of a named size: `Gpt2Config.small(vocab_size=8192)`.
    """

    vocab_size: int = 50257
    """Vocabulary size."""
    n_positions: int = 1024
    """Maximum sequence length."""
    n_inner: int | None = None
    """Inner size of the feed-forward network, F; None is 4 D."""
    bos_token_id: int | None = 50256
    """Token id between documents; transformers begins a text without a prompt with it."""
    eos_token_id: int | None = 50256
    """Token id at the end of a text, the same one."""

    field_names: ClassVar[dict[str, str]] = DecoderConfig.field_names | {"end_token": "eos_token_id"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_inner is not None:
            check_ranges("model", self, n_inner=FROM_1)

    small = Size("124,439,808 parameters.")
    medium = Size("354,823,168 parameters.", n_layer=24, n_embd=1024, n_head=16)
    large = Size("774,030,080 parameters.", n_layer=36, n_embd=1280, n_head=20)
    xl = Size("1,557,611,200 parameters.", n_layer=48, n_embd=1600, n_head=25)
    tiny = Size("Two layers of 128.", n_embd=128, n_layer=2, n_head=2)

    @property
    def inner_size(self) -> int:
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def residual_initializer(self) -> Initializer:
        """Initializer of the projections at the end of a sublayer."""
        return nn.initializers.normal(self.initializer_range / math.sqrt(2 * self.n_layer))


class Gpt2Layer(nn.Module):
    """Masked self-attention, then feed-forward; each reads the normalised sum and adds its output after dropout."""

    config: Gpt2Config
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, cache: KeyValueCache | None, layer: jax.Array
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Map [B T D] to [B T D], and to the cache with the layer's keys and values of these tokens."""
        config, execution = self.config, self.execution
        norm = functools.partial(LayerNorm, config.layer_norm_epsilon, execution.dtype)
        attention_norm, feed_forward_norm = norm(name="attention_layer_norm"), norm(name="feed_forward_layer_norm")
        made = {"execution": execution, "output_init": config.residual_initializer}
        sizes, rate, init = (config.n_embd, config.n_head), config.attn_pdrop, config.initializer
        attention = MultiHeadAttention(*sizes, rate, init, **made, name="attention")
        feed_forward = FeedForward(config.inner_size, config.activation_function, init, **made, name="feed_forward")
        attend = functools.partial(attention.attend, deterministic=self.deterministic)
        dropout = functools.partial(Dropout(config.resid_pdrop), deterministic=self.deterministic)

        y = attention_norm(x)
        key_values, cache = with_past(attention.key_values(y), cache, layer)
        x = shard_hidden(x + dropout(attend(y, key_values, mask_terms)))
        return shard_hidden(x + dropout(feed_forward(feed_forward_norm(x)))), cache


class Gpt2Model(nn.Module):
    """Embeddings, L layers whose parameters are stacked [L ...] under `layers`, and a norm."""

    config: Gpt2Config
    execution: Execution = Execution()

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        positions = nn.initializers.normal(POSITION_DEVIATION)
        self.word_embeddings = Embedding(config.vocab_size, config.n_embd, "vocab", config.initializer, dtype)
        self.position_embeddings = Embedding(config.n_positions, config.n_embd, None, positions, dtype)
        self.dropout = Dropout(config.embd_pdrop)
        self.layer_norm = LayerNorm(config.layer_norm_epsilon, dtype)

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
        """Take and return the same as `GptModel`; the last of the hidden states is normalised, as in transformers."""
        rows = read_rows(
            self.config,
            input_ids,
            attention_mask,
            positions=positions,
            segment_ids=segment_ids,
            prefix_lengths=prefix_lengths,
            cache=cache,
        )
        x = self.dropout(self.word_embeddings(input_ids) + self.position_embeddings(rows.positions), deterministic)
        x = shard_hidden(x)

        def body(layer: Gpt2Layer, carried: tuple[jax.Array, Any], number: jax.Array) -> tuple[Any, Any]:
            before = carried[0]
            carried = layer(before, rows.mask_terms, carried[1], number)
            return carried, before if output_hidden_states else None

        layers, depth = Gpt2Layer(self.config, self.execution, deterministic, name="layers"), self.config.n_layer
        with collect(output_attentions) as attentions:
            (x, cache), states = stack(
                body, layers, depth, execution=self.execution, x=(x, rows.cache), inputs=jnp.arange(depth)
            )
        x = self.layer_norm(x)
        return DecoderOutput(
            last_hidden_state=x,
            hidden_states=jnp.concatenate([states, x[None]]) if output_hidden_states else None,
            scores=VocabularyScores(x, self.word_embeddings.embedding),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
            attentions=attentions.get(OWN),
        )


class Gpt2ForCausalLM(DecoderForCausalLM):
    """GPT-2, whose word table is the output layer."""

    config: Gpt2Config


def _parts(config: Gpt2Config) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, each layer, and the last norm."""
    layers = (ParameterGroup(("gpt2/layers",), layer) for layer in range(config.depth))
    embeddings = ParameterGroup(("gpt2/word_embeddings", "gpt2/position_embeddings"))
    return embeddings, *layers, ParameterGroup(("gpt2/layer_norm",))


SYSTEM = declare(
    System(
        Gpt2Config,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: Gpt2ForCausalLM,
            Purpose.CAUSAL_LM: Gpt2ForCausalLM,
            Purpose.SEQ2SEQ: Gpt2ForCausalLM,
            Purpose.ENCODING: Gpt2Model,
            Purpose.EMBEDDING: Gpt2Model,
            Purpose.SEQUENCE_CLASSIFICATION: DecoderForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: DecoderForMultipleChoice,
            Purpose.QUESTION_ANSWERING: QuestionAnswering,
        },
        name="gpt2",
        returns=("scores",),
        template=lambda config: DECODER_TEMPLATE,
        parts=_parts,
        cache=decoder_cache,
        token_table="gpt2/word_embeddings/embedding",
    )
)
