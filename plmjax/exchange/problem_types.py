"""What the outputs of a classifier mean, as the problem_type of transformers' config.json says it, in and out."""

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
"""problem_type -> objective. Where it is null transformers goes by the labels that it is trained with."""


def stated(objective: Objective, data: Any, names: tuple[str, ...], problem: str | None) -> tuple[Objective, Any]:
    """The objective and data of a classifier of sequences as config.json's problem_type states them.

    objective, data: as they are where it states nothing; those of anything else stay. Raises UserError for a problem
    that is not known, or not with so many labels.
    """
    if problem is None or not isinstance(objective, SentenceObjective):
        return objective, data
    if not isinstance(problem, str) or problem not in PROBLEMS:
        raise UserError(
            f"Expected a known problem_type in the config, found {quoted(problem)}; {nearest(str(problem), PROBLEMS)}"
        )
    if problem == "multi_label_classification":
        return MultiLabelClassification(labels=names), LabelSets()
    if (problem == "regression") != (len(names) == 1):
        raise UserError(
            f"Expected one label for a regression or two and more for a classification in the config, found the "
            f"problem_type {quoted(problem)} with {len(names)}; correct it."
        )
    return (Regression() if problem == "regression" else SequenceClassification(labels=names)), Sentences()


def named(objective: Objective) -> str | None:
    """problem_type of an objective; None for those of which transformers asks none."""
    return next((name for name, kind in PROBLEMS.items() if type(objective) is kind), None)
