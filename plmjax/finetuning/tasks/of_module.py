"""Which task trains a model with a head."""

from collections.abc import Sequence

import flax.linen as nn

from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.finetuning.tasks.task import Task, TaskObjective
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.models.bert import BertForMultipleChoice
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification
from plmjax.models.gpt import GptForMultipleChoice
from plmjax.models.transformer import TransformerForConditionalGeneration


def task_of(module: nn.Module, labels: Sequence[str] = ()) -> tuple[TaskObjective, Task]:
    """The objective that trains a module for a downstream task, and its data, which names no files.

    labels: names of the head's labels; by default LABEL_0, LABEL_1, ... One label without more said is a regression.
    """
    if isinstance(module, TransformerForConditionalGeneration):
        length = min(TextPairs.target_length, module.config.longest)
        return Translation(max_new_tokens=length - 1), TextPairs(target_length=length)
    if isinstance(module, QuestionAnswering):
        return SpanExtraction(), Questions()
    if isinstance(module, BertForMultipleChoice | GptForMultipleChoice):
        return MultipleChoice(), Choices()
    labels = tuple(labels) or tuple(f"LABEL_{label}" for label in range(module.num_labels))
    if isinstance(module, TokenClassification):
        return TokenTagging(labels=labels, entities="O" in labels), Tagging(scheme="IOB2" if "O" in labels else "")
    return Regression() if module.num_labels == 1 else SequenceClassification(labels=labels), Sentences()
