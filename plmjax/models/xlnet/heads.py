"""The heads of XLNet for texts, choices and answers (zihangdai/xlnet modeling.py, function_builder.py, run_squad.py).

The last token of a row, [CLS], represents a text or a choice:

    scores = W' dropout(tanh(W x_[CLS] + b)) + b'

An answer is searched in two steps. Each token gets a score as the start. Then, for each of the most likely starts, each
token gets a score as the end:

    start_i = a . x_i + a'                 end_ij = e . norm(tanh(E x_j + E' x_i + e')) + e''
    no answer: n . tanh(M x_start + M' x_[CLS] + m),     x_start the mean of all x_i, weighted by softmax(start)

In training, i is the right start, and x_start is its hidden state.
"""

from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attentions import Attentions
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.layers.dropout import Dropout
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import gather_tokens, last_tokens
from plmjax.models.families.task_heads import LastTokenClassification, score_choices


class Summary(nn.Module):
    """dropout(tanh(W x + b)) of the last token of a text, and a linear layer: [... D] -> float32 [... outputs]."""

    config: ModelConfig
    execution: Execution
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Map hidden states of last tokens to scores."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        x = jnp.tanh(Projection((config.d_model,), ("embed", "mlp"), init, dtype, name="summary")(x))
        x = Dropout(config.summary_last_dropout)(x, deterministic)
        return Projection((self.outputs,), ("embed", None), init, dtype, logits=True, name="output")(x)


class XlnetForSequenceClassification(LastTokenClassification):
    """The model and a summary of the last token of a row; with one label it is a regression."""

    head: ClassVar[type[Summary]] = Summary


class XlnetForMultipleChoice(XlnetForSequenceClassification):
    """The model and a summary of the last token, which gives every choice one score."""

    num_labels: ClassVar[int] = 1

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> Any:
        """Take and return the same as `XlnetModel`, for C adjacent choices of a question: int [B C T] -> logits [B C].

        With `cls_positions` int [B C K] logits are [B C K]. Hidden states are those of the rows, with [B C] as one
        axis.
        """
        output, scores = score_choices(super().__call__, input_ids, **inputs)
        return output.replace(label_logits=scores)


@flax.struct.dataclass
class SearchedAnswers(Attentions):
    """The output of the search for answers; fields that were not requested are None.

    Attributes:
        starts: int [B n], the most likely starts.
        start_probabilities: float32 [B n].
        ends: int [B m*n], the most likely end for each start, then the second most likely for each, and so on.
        end_probabilities: float32 [B m*n], of these ends, given the start.
        impossible_logits: float32 [B], above 0 if the text has no answer.
        start_logits: float32 [B T]; in training.
        end_logits: float32 [B T], given the right start; in training.
    """

    starts: jax.Array | None = None
    start_probabilities: jax.Array | None = None
    ends: jax.Array | None = None
    end_probabilities: jax.Array | None = None
    impossible_logits: jax.Array | None = None
    start_logits: jax.Array | None = None
    end_logits: jax.Array | None = None


class PairScores(nn.Module):
    """A score of two vectors, w . norm(tanh(A x + B y + b)) + c.

    normalized: true for the norm and c; false to leave out both.
    """

    config: ModelConfig
    execution: Execution
    normalized: bool

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Map two [... D] that broadcast against each other to float32 [...]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        size, axes = (config.width,), ("embed", "mlp")
        first = Projection(size, axes, init, dtype, name="first")(x)
        hidden = jnp.tanh(first + Projection(size, axes, init, dtype, use_bias=False, name="second")(y))
        if self.normalized:
            hidden = LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(hidden)
        output = Projection((1,), ("embed", None), init, dtype, logits=True, use_bias=self.normalized, name="output")
        return output(hidden)[..., 0]


class XlnetForQuestionAnswering(nn.Module):
    """The model and the search for an answer."""

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, execution = self.config, self.execution
        self.encoder = config.module(Purpose.ENCODING, execution)
        self.start = Projection((1,), ("embed", None), config.initializer, execution.dtype, logits=True)
        self.end = PairScores(config, execution, normalized=True)
        self.impossible = PairScores(config, execution, normalized=False)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        cls_positions: jax.Array | None = None,
        answer_mask: jax.Array | None = None,
        start_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> SearchedAnswers:
        """Take the same as `XlnetModel` and return the most likely answers, or the scores for training.

        Args:
            cls_positions: int [B 1], the token that represents the row; by default the last one.
            answer_mask: [B T], 1 for tokens that may be in an answer; all by default.
            start_positions: int [B], the right starts; with these the scores of training are returned.
        """
        output = self.encoder(input_ids, attention_mask, deterministic=deterministic, **inputs)
        x, attentions = output.last_hidden_state, output.attentions
        summary = (
            last_tokens(x, attention_mask, None) if cls_positions is None else gather_tokens(x, cls_positions)[:, 0]
        )
        possible = jnp.ones(input_ids.shape, bool) if answer_mask is None else answer_mask > 0
        start_logits = jnp.where(possible, self.start(x)[..., 0], EXCLUDED)
        if start_positions is not None:
            start = gather_tokens(x, start_positions[:, None])
            return SearchedAnswers(
                impossible_logits=self.impossible(start[:, 0], summary),
                start_logits=start_logits,
                end_logits=jnp.where(possible, self.end(x, start), EXCLUDED),
                attentions=attentions,
            )
        start_shares = jax.nn.softmax(start_logits)
        start_probabilities, starts = jax.lax.top_k(start_shares, min(self.config.start_n_top, x.shape[1]))
        end_logits = self.end(x[:, None], gather_tokens(x, starts)[:, :, None])  # [B n T]
        end_shares = jax.nn.softmax(jnp.where(possible[:, None], end_logits, EXCLUDED))
        best = jax.lax.top_k(end_shares, min(self.config.end_n_top, x.shape[1]))  # [B n m]
        end_probabilities, ends = (jnp.moveaxis(each, 1, 2).reshape(len(each), -1) for each in best)
        start = jnp.einsum("BTD,BT->BD", x, start_shares.astype(x.dtype))
        impossible = self.impossible(start, summary)
        return SearchedAnswers(starts, start_probabilities, ends, end_probabilities, impossible, attentions=attentions)
