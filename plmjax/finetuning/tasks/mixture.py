"""Several text-to-text tasks that one model learns together, distinguished by the prefix of their sources.

As T5 (Raffel et al., JMLR 2020, sections 2.4 and 3.5.2): every task consists of pairs of texts; for a classification
these are the text and the label's words. Examples of all tasks are mixed at rates
(plmjax/finetuning/batches/mixing.py) and share rows. Each task is evaluated separately, by the metrics of its kind.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from plmjax.contracts.model_config import ModelConfig
from plmjax.data import mixing
from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges
from plmjax.finetuning.batches.encoded import Encoded, concatenate
from plmjax.finetuning.batches.mixing import Mixing
from plmjax.finetuning.metrics.text_metrics import BleuAndChrf, Scorer
from plmjax.finetuning.tasks.joint import (
    JointExamples,
    JointTask,
    NamedTask,
    check_different,
    joint_answer,
    joint_metric_names,
    options_of,
    qualify_names,
)
from plmjax.finetuning.tasks.task import Answers, Outputs, Task
from plmjax.finetuning.tasks.text_generation import TextGeneration, score_texts
from plmjax.finetuning.tasks.text_pairs import PairColumns, TextPairs
from plmjax.generation.options import in_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(PairColumns, NamedTask):
    """A task of a mixture."""

    judge: Scorer = BleuAndChrf()
    """The metrics of the generated texts."""


@dataclasses.dataclass(frozen=True)
class Mixture(JointTask):
    """Text-to-text tasks with files of their own, and the rates at which they are sampled."""

    tasks: tuple[TextTask, ...] = ()
    """The tasks, each with a different name and prefix."""
    limit: int = 2**21
    """Largest number of examples of a task that count for its rate, K; the files are read as a whole."""
    temperature: float = 1.0
    """T of the rates min(examples, K)^(1/T): 1 samples in proportion to the examples, inf every task equally often."""
    weights: tuple[str, ...] = ()
    """Weights of the tasks in place of these rates, each as NAME=WEIGHT; empty takes the temperature."""
    target_length: int = 128
    """Number of tokens in a row of targets, including special ones; 0 where a decoder reads both texts in one row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("data", self, limit=FROM_1, target_length=FROM_0)
        mixing.check_temperature("--data.temperature", self.temperature)
        names = [task.name for task in self.tasks]
        check_different("the tasks' prefixes", [task.prefix.strip() for task in self.tasks], names)
        if self.weights and self.temperature != 1:
            raise UserError("Expected either --data.weights or --data.temperature, found both; leave one out.")
        self._weights()

    def single_task(self, task: TextTask) -> TextPairs:
        return TextPairs(**options_of(task, self, TextPairs))

    def mixing(self, train: JointExamples) -> Mixing:
        sizes = {task.name: len(part) for task, part in zip(train.tasks, train.parts, strict=True)}
        return Mixing(sizes, self.limit, self.temperature, self._weights())

    def _weights(self) -> dict[str, float]:
        """Return the weights of the chosen tasks; empty without weights, or if one task is chosen."""
        names, chosen = ([task.name for task in tasks] for tasks in (self.tasks, self.selected))
        needed = chosen if self.weights and len(chosen) > 1 else []
        found = mixing.weights("--data.weights", self.weights, names, needed)
        return {name: float(found[name]) for name in needed}


@dataclasses.dataclass(frozen=True)
class MixedTextGeneration(TextGeneration):
    """Texts of several tasks, each evaluated by its own metrics. The mean is over the first metric of each task.

    The loss is the mean over the target tokens of all tasks.
    """

    task_class: ClassVar[type[Task]] = Mixture

    def evaluation_metrics(self, task: Mixture) -> tuple[str, ...]:
        return joint_metric_names({one.name: one.judge.names for one in task.selected})

    def signatures(self, task: Mixture) -> dict[str, str]:
        signatures = {one.name: one.judge.signatures() for one in task.selected}
        return qualify_names(signatures) | {"decoding": in_words(self.decoding().explicit())}

    def encode(self, examples: JointExamples, tokenizer: Any, model: ModelConfig, task: Mixture) -> Encoded:
        parts = []
        for one, part in zip(task.selected, examples.parts, strict=True):
            with task.named_options(one):
                parts.append(super().encode(part, tokenizer, model, task.single_task(one)))
        return concatenate(parts)

    def prompts(self, texts: Sequence[str], tokenizer: Any, model: ModelConfig, task: Mixture) -> list[list[int]]:
        """Encode sources as in training.

        With several tasks, each source already has the prefix of its task, which identifies the task.
        """
        first, *others = task.selected
        alone = dataclasses.replace(task.single_task(first), **({"prefix": ""} if others else {}))
        return TextGeneration(**self.explicit()).prompts(texts, tokenizer, model, alone)

    def evaluate_outputs(self, examples: JointExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """Return metrics and predictions.TASK.jsonl: line, source, target and generated text of every pair."""
        answers, compared, records = {}, [], iter(self.records(examples, encoded, outputs))
        for task, part in zip(examples.tasks, examples.parts, strict=True):
            scores, written = score_texts(task.judge, part, list(itertools.islice(records, len(part))))
            answers[task.name] = scores, {"predictions.jsonl": written}
            compared.append(scores[task.judge.names[0]])
        return joint_answer(answers, compared)
