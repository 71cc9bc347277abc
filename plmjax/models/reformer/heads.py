"""The outputs of Reformer's modules, and its heads: the next token, masked tokens, and the label of a text."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax

from plmjax.contracts.attentions import Attentions
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Purpose
from plmjax.layers.tokens import first_tokens, gather_tokens
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.families.task_heads import ClassificationHead
from plmjax.models.reformer.cache import ReformerCache


@flax.struct.dataclass
class ReformerOutput(Attentions):
    """The output of a Reformer; fields that a module does not compute are None.

    last_hidden_state: both streams, normalised, [B T 2D].
    hidden_states: both streams before each layer, and `last_hidden_state`, [L+1 B T 2D]; only if requested.
    scores: scores of the next token at every position; only of a causal language model.
    head_logits: float32, [B T V] or [B P V] of a masked language model, [B labels] or [B 1 labels] of a classifier.
    cache: the given cache, with the tokens of this call.
    """

    last_hidden_state: jax.Array
    hidden_states: jax.Array | None = None
    scores: TokenScores | None = None
    head_logits: jax.Array | None = None
    cache: ReformerCache | None = None

    @property
    def logits(self) -> jax.Array:
        """The logits of the next token, float32 [B T V], or `head_logits`."""
        return self.scores.logits() if self.head_logits is None else self.head_logits


class ReformerForCausalLM(nn.Module):
    """A decoder with the scores of the next token; its output layer has a separate table and a bias."""

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.output = OutputLayer(self.config)

    def __call__(self, input_ids: jax.Array, *arguments: jax.Array | None, **settings: Any) -> ReformerOutput:
        """Take and return the same as `ReformerModel`, with `scores`."""
        outputs = self.encoder(input_ids, *arguments, **settings)
        return outputs.replace(scores=self.output(outputs.last_hidden_state))


class ReformerForMaskedLM(nn.Module):
    """An encoder with the scores of every token, or of the tokens at `masked_positions`."""

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.output = OutputLayer(self.config)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: Any
    ) -> ReformerOutput:
        """Take and return the same as `ReformerModel`, with logits [B T V], or [B P V] at positions int [B P]."""
        outputs = self.encoder(input_ids, **inputs)
        hidden = gather_tokens(outputs.last_hidden_state, masked_positions)
        return outputs.replace(head_logits=self.output(hidden).logits())


class ReformerForSequenceClassification(nn.Module):
    """An encoder with a head of two layers on the first token."""

    config: ModelConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> ReformerOutput:
        """Take and return the same as `ReformerModel`, with logits [B labels], or [B 1 labels] at `cls_positions`."""
        outputs = self.encoder(input_ids, deterministic=deterministic, **inputs)
        first = first_tokens(outputs.last_hidden_state, cls_positions)
        return outputs.replace(head_logits=self.classifier(first, deterministic))


class OutputLayer(nn.Module):
    """The scores of all tokens, W x + b, with a separate table [V 2D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> VocabularyScores:
        """Return the scores of hidden states, [B T 2D]."""
        config, shape = self.config, (self.config.vocab_size, 2 * self.config.hidden_size)
        table = self.param("table", nn.with_logical_partitioning(config.initializer, ("vocab", "embed")), shape)
        zeros = as_bias(nn.initializers.zeros, ("vocab",))
        return VocabularyScores(hidden, table, self.param("bias", zeros, shape[:1]))
