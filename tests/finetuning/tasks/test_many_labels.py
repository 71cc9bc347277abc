"""More labels, choices and tasks than have one digit, and the multiplications of heads with unequal sizes."""

import dataclasses

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.finetuning.metrics.text_metrics import Rouge
from plmjax.finetuning.tasks.choices import Choices
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.label_sets import LabelSetExamples, MultiLabelClassification
from plmjax.finetuning.tasks.mixture import MixedTextGeneration, Mixture, TextTask
from plmjax.finetuning.tasks.parsing import DependencyParsing, ParsedExamples
from plmjax.finetuning.tasks.sentences import SentenceExamples, SequenceClassification
from plmjax.finetuning.tasks.tagging import TaggedExamples, TokenTagging
from plmjax.inference import task_settings
from tests.third_party import experiments

NAMES = [str(number) for number in range(12)]
SORTED = ("0", "1", "10", "11", *"23456789")
"""Labels are texts, and sorted as such, so that every run has them in the same order."""


def test_labels_of_two_digits_are_sorted_as_texts_and_keep_their_numbers() -> None:
    lines, texts = [*range(12)], [("x",)] * 12
    sentences = SentenceExamples("", lines, texts, NAMES)
    learned = SequenceClassification().fit_labels(sentences)
    assert learned.labels == SORTED and learned.numbers(sentences).tolist() == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]
    assert [one["prediction"] for one in learned.predictions(np.eye(12)[:, ::-1])] == [*SORTED[::-1]]
    sets = LabelSetExamples("", lines, texts, [(name,) for name in NAMES])
    many = MultiLabelClassification().fit_labels(sets)
    assert many.labels == SORTED and many.numbers(sets).argmax(axis=1).tolist() == learned.numbers(sentences).tolist()
    words = [[*"abcdefghijkl"]]
    tagged = TaggedExamples("", [1], words, [NAMES], [[1] * 12], "")
    assert TokenTagging().fit_labels(tagged).labels == CrfTagging().fit_labels(tagged).labels == SORTED
    parsed = ParsedExamples("", [1], words, [[0] * 12], [NAMES])
    assert DependencyParsing().fit_labels(parsed).relations == SORTED


@pytest.mark.parametrize(("label", "number"), [("10", 10), ("11", 11), ("0", 0), ("K", 10), ("l", 11), ("a", 0)])
def test_the_right_one_of_twelve_choices_has_a_number_or_a_letter(label: str, number: int, tmp_path) -> None:
    columns = tuple(f"c{name}" for name in NAMES)
    path = tmp_path / "rows.tsv"
    path.write_text("\t".join(("context", "label", *columns)) + "\n" + "\t".join(("x", label, *NAMES)) + "\n")
    examples = Choices(train=str(path), choices=columns).read("train")
    assert examples.answers == [number] and examples.choices == [NAMES]


def test_a_setting_of_the_eleventh_task_is_its_own() -> None:
    tasks = [TextTask(name=f"task{name}", prefix=f"{name}: ", judge=Rouge()) for name in NAMES]
    mixture = Mixture(tasks=tuple(tasks))
    run = dataclasses.replace(experiments.t5(), data=mixture, objective=MixedTextGeneration())
    changed = task_settings.with_settings(run, {"tasks.10.source": "other"}, labelled=False).data
    assert [task.source for task in changed.tasks] == ["other" if name == "10" else "source" for name in NAMES]
    assert dataclasses.replace(changed, tasks=mixture.tasks) == mixture
    assert "tasks.11.source" in mixture.settings(False) and "tasks.12.source" not in mixture.settings(False)
    with pytest.raises(UserError, match=r"--data\.tasks\.10\.train"), mixture.named_options(mixture.tasks[10]):
        raise UserError("Expected a file in --data.train, found none; name one.")
    only = dataclasses.replace(mixture, only=("task11", "task2"))
    assert [task.name for task in only.selected] == ["task2", "task11"]
    moved = mixture.with_validation_file("task10=other.tsv")
    assert [task.validation for task in moved.tasks] == ["other.tsv" if name == "10" else "" for name in NAMES]
    assert moved.only == ("task10",)
