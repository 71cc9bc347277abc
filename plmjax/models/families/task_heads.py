"""Heads that many systems share: for labels of tokens, answer spans, labels of texts, and multiple choice.

Heads that represent a text by another token than its last are in the files of the families and systems. The parameters
of every head are under `classifier`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp

from plmjax.contracts.attentions import HeadAttentions, attentions_of
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.layers.crf import Possible, Scores, TransitionScores
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import Projection
from plmjax.layers.scalar_mix import ScalarMix
from plmjax.layers.tokens import last_tokens

HEAD = "classifier"
MIX = "scalar_mix"
TRANSITIONS = "transitions"
TASK_PARTS = (HEAD, MIX, TRANSITIONS)
"""Parts of a fine-tuned model's parameters that are not pretrained: initialized for every task."""


@flax.struct.dataclass
class TaggingOutput(HeadAttentions):
    """The output of a head for labels of tokens.

    logits: float32 [B T labels], of each token independently.
    mix_weights: float32 [mixes L+1], the weights of all learned mixes of layers; None without mixes.
    transitions: scores of pairs of adjacent labels; None if labels are independent.
    """

    logits: jax.Array
    mix_weights: jax.Array | None
    transitions: Scores | None = None


@flax.struct.dataclass
class SpanOutput(HeadAttentions):
    """The output of a head for answer spans.

    start_logits, end_logits: float32 [B T], the score of each token as the first and as the last token of the answer.
    """

    start_logits: jax.Array
    end_logits: jax.Array


class TokenClassification(nn.Module):
    """W dropout(x_i) + b for every token i (Devlin et al. 2019, section 5.3).

    mix: x is a learned mix of all layers, as in ELMo, instead of the last layer.
    """

    config: ModelConfig
    execution: Execution = Execution()
    num_labels: int = 2
    mix: bool = False

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array | None = None,
        *,
        characters: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> TaggingOutput:
        """Take and return the same as the encoder, with logits.

        The encoder reads token ids, characters or both, as its system declares.
        """
        tokens = {"input_ids": input_ids, "characters": characters}
        inputs |= {name: tokens[name] for name in self.config.system.reads}
        inputs |= {
            "deterministic": deterministic,
            "output_hidden_states": self.mix or inputs.get("output_hidden_states"),
        }
        output = self.config.module(Purpose.ENCODING, self.execution)(**inputs)
        hidden = ScalarMix(name=MIX)(output.hidden_states) if self.mix else output.last_hidden_state
        axes, init = ("embed", None), self.config.initializer
        head = Projection((self.num_labels,), axes, init, self.execution.dtype, logits=True, name=HEAD)
        logits = head(self.read(hidden, deterministic))
        return TaggingOutput(logits, self._mix_weights(), **attentions_of(output))

    def read(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Return the input of the linear layer, [B T D]; a system with a further layer before it overrides this."""
        return Dropout(self.config.head_dropout)(x, deterministic)

    def _mix_weights(self) -> jax.Array | None:
        """Return the weights of this module's mix, and of all mixes within the encoder."""
        parameters = flax.traverse_util.flatten_dict(nn.meta.unbox(self.variables["params"]))
        mixes = [value for path, value in parameters.items() if path[-2].startswith(MIX) and path[-1] == "weights"]
        return jnp.stack(mixes) if mixes else None


class CrfTokenClassification(TokenClassification):
    """`TokenClassification` with a conditional random field over the labels of a sentence (layers/crf.py).

    possible: the labels and pairs of labels that the label scheme allows.
    """

    possible: Possible = Possible((), (), ())

    @nn.compact
    def __call__(self, input_ids: jax.Array | None = None, **inputs: Any) -> TaggingOutput:
        """Take and return the same as `TokenClassification`, with the scores of transitions."""
        output = super().__call__(input_ids, **inputs)
        return output.replace(transitions=TransitionScores(self.possible, name=TRANSITIONS)())


class ClassificationHead(nn.Module):
    """W' dropout(tanh(W dropout(x) + b)) + b' of one hidden state of a text (fairseq RobertaClassificationHead)."""

    config: ModelConfig
    execution: Execution
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map [... D] to float32 [... outputs]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        dropout = Dropout(config.head_dropout)
        x = Projection((config.width,), ("embed", "mlp"), init, dtype, name="dense")(dropout(x, deterministic))
        x = dropout(jnp.tanh(x), deterministic)
        return Projection((self.outputs,), ("mlp", None), init, dtype, logits=True, name="output")(x)


class LastTokenClassification(nn.Module):
    """The encoder and a head on the last token of a text; with one label it is a regression.

    head: class of the head; its arguments are a config, an execution and the number of labels.
    """

    config: ModelConfig
    execution: Execution = Execution()
    num_labels: int = 2
    head: ClassVar[Callable[..., nn.Module]] = ClassificationHead

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        self.classifier = self.head(self.config, self.execution, self.num_labels)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> Any:
        """Take and return the same as the encoder, with `label_logits`.

        They are [B labels], or [B K labels] of the packed texts that end at `cls_positions`, int [B K].
        """
        output = self.encoder(input_ids, attention_mask, deterministic=deterministic, **inputs)
        last = last_tokens(output.last_hidden_state, attention_mask, cls_positions)
        return output.replace(label_logits=self.classifier(last, deterministic))


def score_choices(
    classify: Callable[..., Any], input_ids: jax.Array, **inputs: jax.Array | bool | None
) -> tuple[Any, jax.Array]:
    """Score C adjacent choices of a question, int [B C T], as separate texts.

    Args:
        classify: a classifier of texts with one label.
        inputs: the other inputs of the classifier; arrays are [B C ...].

    Returns:
        the output of the classifier, with B C rows, and the scores, float32 [B C], or [B C K] with `cls_positions` int
        [B C K].
    """
    rows = {name: x.reshape(-1, x.shape[-1]) if getattr(x, "ndim", 0) else x for name, x in inputs.items()}
    output = classify(input_ids.reshape(-1, input_ids.shape[-1]), **rows)
    scores = output.logits[..., 0]
    return output, scores.reshape(*input_ids.shape[:-1], *scores.shape[1:])


class QuestionAnswering(nn.Module):
    """S . x_i + s and E . x_i + e, the scores of token i as start and as end of the answer (ibid., section 4.2).

    Deviation: the paper has no biases s and e. The released code has them, and the checkpoints hold them.
    """

    config: ModelConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> SpanOutput:
        """Take the same as the encoder and return the scores of spans."""
        output = self.config.module(Purpose.ENCODING, self.execution)(input_ids, deterministic=deterministic, **inputs)
        hidden = self.read(output.last_hidden_state, deterministic)
        axes, init = ("embed", None), self.config.initializer
        ends = Projection((2,), axes, init, self.execution.dtype, logits=True, name=HEAD)(hidden)
        return SpanOutput(start_logits=ends[..., 0], end_logits=ends[..., 1], **attentions_of(output))

    def read(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Return the input of the scores, [B T D]; a system with dropout here overrides this."""
        return x


TOKEN_HEADS = {Purpose.TOKEN_CLASSIFICATION: TokenClassification, Purpose.QUESTION_ANSWERING: QuestionAnswering}
"""The heads on single tokens, for an encoder that sees both sides of each token."""
