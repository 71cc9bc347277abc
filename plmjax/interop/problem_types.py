"""The meaning of a classifier's outputs, converted from and to the problem_type of transformers' config.json."""

from typing import Any

from plmjax.errors import UserError, nearest, quoted
from plmjax.finetuning.tasks.label_sets import LabelSets, MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, SentenceObjective, Sentences, SequenceClassification
from plmjax.objectives.objective import Objective

PROBLEMS = {
    "single_label_classification": SequenceClassification,
    "multi_label_classification": MultiLabelClassification,
    "regression": Regression,
}
"""problem_type -> objective. If it is null, transformers decides by the labels in training."""


def with_problem_type(
    objective: Objective, data: Any, names: tuple[str, ...], problem: str | None
) -> tuple[Objective, Any]:
    """Return the objective and data of a sequence classifier that match the problem_type of config.json.

    objective, data: returned unchanged if there is no problem_type or the model is not a sequence classifier.

    Raises:
        UserError: the problem_type is unknown, or does not match the number of labels.
    """
    if problem is None or not isinstance(objective, SentenceObjective):
        return objective, data
    if not isinstance(problem, str) or problem not in PROBLEMS:
        raise UserError(f"Expected a known problem_type, found {quoted(problem)}; {nearest(str(problem), PROBLEMS)}")
    if problem == "multi_label_classification":
        return MultiLabelClassification(labels=names), LabelSets()
    if (problem == "regression") != (len(names) == 1):
        raise UserError(
            "Expected one label for a regression or two and more for a classification, found the "
            f"problem_type {quoted(problem)} with {len(names)}; correct it."
        )
    return (Regression() if problem == "regression" else SequenceClassification(labels=names)), Sentences()


def problem_type_of(objective: Objective) -> str | None:
    """Return the problem_type of an objective, or None if transformers needs none."""
    return next((name for name, kind in PROBLEMS.items() if type(objective) is kind), None)
