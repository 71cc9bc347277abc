"""The decoder of Ettin (Weller et al., arXiv 2507.11412): ModernBERT's layers with causal attention.

    x_t = norm(words[token_t])
    L times:  x = x + causal_attention(norm(x));  x = x + (gelu(norm(x) W1) * (norm(x) V)) W2
    next token:  softmax(words . norm(gelu(W norm(x_t))) + c)

Encoders and decoders of six sizes were pretrained on the same batches in the same order. Their parameters have the same
shapes, so an encoder can be trained further as a decoder, and the reverse (`plmjax.runs.weight_mappings.ettin`). Only
the mask differs: all layers are causal. In a local layer a token sees w / 2 tokens, itself and those before it.

Deviation: on each side the window of the encoder has w / 2 tokens besides the token itself. Here the w / 2 tokens
include the token itself, as in the masks of transformers.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Window
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.rows import read_rows
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.decoder import DecoderForSequenceClassification, DecoderOutput
from plmjax.models.modernbert.encoder import ModernBertStacks
from plmjax.models.modernbert.heads import PredictionHead, TwoLayers
from plmjax.models.modernbert.modernbert import SYSTEM as MODERNBERT
from plmjax.models.modernbert.modernbert import ModernBertConfig


@dataclasses.dataclass(frozen=True)
class ModernBertDecoderConfig(ModernBertConfig):
    """Sizes of a decoder with ModernBERT's layers, such as Ettin's (arXiv 2507.11412).

    Arguments override the fields of a named size: `ModernBertDecoderConfig.ettin_17m(vocab_size=8192)`.
    """

    local_attention: int = 128
    """Twice the number of tokens that a token sees in local layers, itself included."""

    num_key_value_heads: ClassVar[None] = None
    norm: ClassVar[str] = "layer"
    embedding_norm: ClassVar[bool] = True
    rotary_interleaved: ClassVar[bool] = False
    head: ClassVar[str] = "transformed"
    tie_word_embeddings: ClassVar[bool] = True
    classifier_pooling: ClassVar[str] = "cls"
    field_names: ClassVar[dict[str, str]] = ModernBertConfig.field_names | {"end_token": "eos_token_id"}

    @property
    def local_window(self) -> Window:
        """The tokens that a token sees in local layers: itself and those before it."""
        return Window(self.local_attention // 2 - 1, 0)


class ModernBertDecoderModel(ModernBertStacks):
    """The embeddings, the stacks of causal layers, and the final norm."""

    config: ModernBertDecoderConfig

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cache: KeyValueCache | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> DecoderOutput:
        """Take and return the same as `GptModel`, without a prefix; the last of the hidden states is normalised."""
        rows = read_rows(
            self.config,
            input_ids,
            attention_mask,
            positions=positions,
            segment_ids=segment_ids,
            prefix_lengths=None,
            cache=cache,
        )
        asked = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        found = self.read(input_ids, rows.positions, rows.mask_terms, rows.cache, deterministic=deterministic, **asked)
        return DecoderOutput(found.last, found.hidden_states, cache=found.cache, attentions=found.attentions)


class LanguageModelHead(nn.Module):
    """Scores of the next token: `PredictionHead`, then the word table as the output layer."""

    config: ModernBertDecoderConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, table: jax.Array) -> VocabularyScores:
        """Return the scores of the vocabulary from hidden states [B T D] and the word table [V D]."""
        config = self.config
        x = PredictionHead(config, self.execution, name="head")(x)
        if not config.decoder_bias:
            return VocabularyScores(x, table)
        bias = self.param("bias", as_bias(nn.initializers.zeros_init(), ("vocab",)), (config.vocab_size,))
        return VocabularyScores(x, table, bias)


class ModernBertDecoderForCausalLM(nn.Module):
    """The decoder with the language model's head."""

    config: ModernBertDecoderConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.language_model = LanguageModelHead(self.config, self.execution)

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> DecoderOutput:
        """Take and return the same as the decoder, with scores."""
        output = self.encoder(input_ids, **inputs)
        scores = self.language_model(output.last_hidden_state, self.encoder.word_embeddings.embedding)
        return output.replace(scores=scores)


class ModernBertDecoderForSequenceClassification(TwoLayers, DecoderForSequenceClassification):
    """The decoder with a head of two layers on the last token of a row."""


def _cache(config: ModernBertDecoderConfig, batch: int, capacity: int, execution: Execution) -> KeyValueCache:
    """Return an empty cache of keys and values."""
    sizes = {"heads": config.num_attention_heads, "size": config.head_size}
    return KeyValueCache.empty(config.num_hidden_layers, batch, capacity, **sizes, dtype=execution.dtype)


SYSTEM = declare(
    System(
        ModernBertDecoderConfig,
        Kind.DECODER,
        {
            Purpose.PRETRAINING: ModernBertDecoderForCausalLM,
            Purpose.CAUSAL_LM: ModernBertDecoderForCausalLM,
            Purpose.SEQ2SEQ: ModernBertDecoderForCausalLM,
            Purpose.ENCODING: ModernBertDecoderModel,
            Purpose.EMBEDDING: ModernBertDecoderModel,
            Purpose.SEQUENCE_CLASSIFICATION: ModernBertDecoderForSequenceClassification,
        },
        name=MODERNBERT.name,
        template=lambda config: Template(pair="cls A sep B sep", summary="last"),
        parts=MODERNBERT.parts,
        token_table=MODERNBERT.token_table,
        cache=_cache,
    )
)
