"""Extractive question answering with a search over starts and ends (zihangdai/xlnet run_squad.py, function_builder.py).

A row is `text [SEP] question [SEP] [CLS]`. The model scores each token as the start of the answer, then each token as
its end, given the start, and the absence of an answer. The most likely starts and ends of all windows of a question
are ranked by the sum of their log probabilities. Files and windows are those of `questions`.

Deviation: the release ranks pairs of a start and an end with a limit of 64 tokens; here `answer_length` is the limit.
Deviation: transformers ranks by the product of probabilities in place of the sum of logarithms, with the same order.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template, TokenRow
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.finetuning.tasks import answers
from plmjax.finetuning.tasks.answers import Candidate, Window
from plmjax.finetuning.tasks.questions import EncodedQuestions, QuestionExamples, SpanExtraction
from plmjax.finetuning.tasks.task import Task, exists
from plmjax.objectives.objective import Batch, LossInputs, LossSums, apply, cross_entropy


@dataclasses.dataclass(frozen=True)
class AnswerSearch(SpanExtraction):
    """The mean of the nats of the answer's first token, and of its last token given the first.

    If questions may have no answer, half of the binary cross entropy of "no answer" is added.
    """

    purpose: ClassVar[Purpose] = Purpose.ANSWER_SEARCH
    per_token: ClassVar[bool] = False
    packs: ClassVar[bool] = False

    @property
    def scores_impossible(self) -> bool:
        """Return whether the output for "no answer" is trained."""
        return self.impossible is not False

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.ANSWER_SEARCH, execution)

    def encode(self, examples: QuestionExamples, tokenizer: Any, model: ModelConfig, task: Task) -> EncodedQuestions:
        """Encode windows as `SpanExtraction` does, with `answer_mask`, 1 at tokens that may be in an answer.

        It is 1 at the summary position too, where the answer is in windows without an answer.
        """
        encoded = super().encode(examples, tokenizer, model, task)
        possible = np.zeros(len(encoded.tokens), np.int32)
        for window, first in zip(encoded.windows, encoded.offsets, strict=False):
            possible[first + window.begin : first + window.begin + window.length] = 1
            possible[first + window.nowhere] = 1
        return dataclasses.replace(encoded, token_fields={"answer_mask": possible})

    def lay_out(
        self, template: Template, question: list[int], text: list[int], vocabulary: Vocabulary
    ) -> tuple[TokenRow, int]:
        """Return the row of a window of a text, then its question."""
        row = template.lay_out((text, question), vocabulary)
        return row, row.starts[0]

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        inputs = super().model_inputs(batch) | {name: batch[name] for name in ("answer_mask", "cls_positions")}
        if "starts" in batch:
            inputs["start_positions"] = (batch["sequence_starts"] + batch["starts"])[:, 0]
        return inputs

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the mean of the nats of start and end, [R 1], and the nats of "no answer", [R 1]."""
        ends = {name: (batch["sequence_starts"] + batch[name])[:, 0] for name in ("starts", "ends")}
        start_nats = cross_entropy(outputs.start_logits, ends["starts"])
        end_nats = cross_entropy(outputs.end_logits, ends["ends"])
        losses = {"task": ((start_nats + end_nats) / 2)[:, None]}
        if self.impossible:
            nowhere = (ends["starts"] == batch["cls_positions"][:, 0]).astype(jnp.float32)
            found = optax.sigmoid_binary_cross_entropy(outputs.impossible_logits, nowhere)
            losses["impossible"] = found[:, None]
        return losses

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return 1 for every window, [R 1]."""
        terms = ("task", "impossible") if self.impossible else ("task",)
        return dict.fromkeys(terms, exists(batch))

    def coefficients(self) -> dict[str, float]:
        return {"impossible": 0.5} if self.impossible else {}

    def evaluate_batch(
        self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array
    ) -> tuple[LossSums, Any]:
        """Return losses given the right starts, and the outputs of the search without them."""
        scored = apply(self, module, given, batch=batch, key=key, training=False)
        unanswered = {name: field for name, field in batch.items() if name != "starts"}
        found = apply(self, module, given, batch=unanswered, key=key, training=False)
        return self.sums_of(scored, batch), self.outputs_for_prediction(found, batch)

    def outputs_for_prediction(self, outputs: Any, batch: Batch) -> jax.Array:
        """Return float32 [R 1 5 n]: the four rows of `answers.rank_searched`, and the logit of "no answer"."""
        repeats = outputs.ends.shape[1] // outputs.starts.shape[1]
        places = [jnp.tile(outputs.starts, repeats), outputs.ends]
        starts, ends = (place - batch["sequence_starts"] for place in places)
        chances = [jnp.tile(outputs.start_probabilities, repeats), outputs.end_probabilities]
        start_scores, end_scores = (jnp.log(jnp.maximum(chance, 1e-30)) for chance in chances)
        null = jnp.broadcast_to(outputs.impossible_logits[:, None], ends.shape)
        return jnp.stack([start_scores, starts, end_scores, ends, null], axis=1).astype(jnp.float32)[:, None]

    def candidates(
        self, windows: list[Window], outputs: list[np.ndarray], context: str, spans: np.ndarray
    ) -> tuple[list[Candidate], float]:
        """Return the best answers of a question, and the smallest "no answer" logit among its windows."""
        found = [each[:4] for each in outputs]
        null = min(float(each[4, 0]) for each in outputs)
        return answers.rank_searched(
            windows, found, context, spans=spans, best=self.best, longest=self.answer_length
        ), null

    def odds(self, best: list[Candidate], null: float) -> float:
        return null

    def nbest(self, best: list[Candidate], null: float) -> list[Candidate]:
        """Return the answers only, because the logit of "no answer" is not the log probability of a span."""
        return best

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return 6 (T (D^2 + 2 D) + 3 D^2 + D) for each row: starts, ends given one start, and "no answer"."""
        rows, length = batch["input_ids"].shape
        size = config.width
        return 6.0 * rows * (length * (size**2 + 2 * size) + 3 * size**2 + size)
