"""Heads that are the same for every encoder: a label for each token, and the two ends of a span.

The head for whole sequences differs from system to system and is in the model files. Each head is named `classifier`.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax

from plmjax.layers.dropout import Dropout
from plmjax.layers.execution import Execution
from plmjax.layers.projection import Projection
from plmjax.layers.scalar_mix import ScalarMix
from plmjax.models.bert import BertOutput, EncoderConfig

HEAD = "classifier"
MIX = "scalar_mix"
TASK_PARTS = (HEAD, MIX)
"""Parts of a fine-tuned model's parameters that are not pretrained: initialised for every task."""


@flax.struct.dataclass
class SpanOutput:
    """start_logits, end_logits: float32 [B T], the score of each token as the first and as the last of the answer."""

    start_logits: jax.Array
    end_logits: jax.Array


class TokenClassification(nn.Module):
    """W dropout(x_i) + b for every token i (Devlin et al. 2019, section 5.3).

    mix: x is a learned mix of all layers, as in ELMo, instead of the last layer.
    """

    config: EncoderConfig
    execution: Execution = Execution()
    num_labels: int = 2
    mix: bool = False

    @nn.compact
    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> BertOutput:
        """As the encoder, with float32 logits [B T labels]."""
        inputs |= {
            "deterministic": deterministic,
            "output_hidden_states": self.mix or inputs.get("output_hidden_states"),
        }
        output = self.config.encoder(self.execution)(input_ids, **inputs)
        hidden = ScalarMix(name=MIX)(output.hidden_states) if self.mix else output.last_hidden_state
        hidden = Dropout(self.config.head_dropout)(hidden, deterministic)
        axes, init = ("embed", None), self.config.initializer
        head = Projection((self.num_labels,), axes, init, self.execution.dtype, logits=True, name=HEAD)
        return output.replace(logits=head(hidden))


class QuestionAnswering(nn.Module):
    """S . x_i and E . x_i for every token i: does the answer start, does it end there (ibid., section 4.2)."""

    config: EncoderConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids: jax.Array, *, deterministic: bool = True, **inputs: Any) -> SpanOutput:
        """As the encoder."""
        output = self.config.encoder(self.execution)(input_ids, deterministic=deterministic, **inputs)
        axes, init = ("embed", None), self.config.initializer
        ends = Projection((2,), axes, init, self.execution.dtype, logits=True, name=HEAD)(output.last_hidden_state)
        return SpanOutput(start_logits=ends[..., 0], end_logits=ends[..., 1])
