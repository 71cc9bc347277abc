"""What transformers says the outputs of a classifier mean, config.json's id2label and problem_type, in and out."""

from collections.abc import Mapping
from typing import Any

from plmjax.errors import UserError, nearest, quoted
from plmjax.finetuning.label_sets import LabelSets, MultiLabelClassification
from plmjax.finetuning.sentences import Regression, SentenceObjective, Sentences, SequenceClassification
from plmjax.objectives.objective import Objective

PROBLEMS = {
    "single_label_classification": SequenceClassification,
    "multi_label_classification": MultiLabelClassification,
    "regression": Regression,
}
"""problem_type -> objective. Where it is null transformers goes by the labels that it is trained with."""


def count(found: Mapping[str, Any]) -> int:
    """How many labels a config.json has. Raises UserError where that is not a number from 1 to a million."""
    named = _named(found)
    number = len(named) if named else found.get("num_labels", 2)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 10**6:
        raise UserError(f"The config must set num_labels to a number of labels, found {quoted(number)}; correct it.")
    return number


def labels(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the labels by a config.json, in the order of their numbers; transformers' own where it names none.

    Raises UserError for an id2label that does not name the labels 0, 1, ..., each another way.
    """
    return _named(found) or tuple(f"LABEL_{label}" for label in range(count(found)))


def _named(found: Mapping[str, Any]) -> tuple[str, ...]:
    named = found.get("id2label")
    if not named:
        return ()
    names = [named.get(str(label)) for label in range(len(named))] if isinstance(named, dict) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise UserError(
            'The config must give the labels different names, as in "id2label": {"0": "no", "1": "yes"}, found '
            f"{str(named)[:60]}; correct it."
        )
    return tuple(names)


def stated(objective: Objective, data: Any, names: tuple[str, ...], problem: str | None) -> tuple[Objective, Any]:
    """The objective and data of a classifier of sequences as config.json's problem_type states them.

    objective, data: as they are where it states nothing; those of anything else stay. Raises UserError for a problem
    that is not known, or not with so many labels.
    """
    if problem is None or not isinstance(objective, SentenceObjective):
        return objective, data
    if not isinstance(problem, str) or problem not in PROBLEMS:
        raise UserError(f"The config has the problem_type {quoted(problem)}; {nearest(str(problem), PROBLEMS)}")
    if problem == "multi_label_classification":
        return MultiLabelClassification(labels=names), LabelSets()
    if (problem == "regression") != (len(names) == 1):
        raise UserError(
            f"The config has the problem_type {quoted(problem)} with {len(names)} label{'s' * (len(names) > 1)}, but a "
            "regression predicts one number and a classification has two labels at least; correct it."
        )
    return (Regression() if problem == "regression" else SequenceClassification(labels=names)), Sentences()


def named(objective: Objective) -> str | None:
    """problem_type of an objective; None for those of which transformers asks none."""
    return next((name for name, kind in PROBLEMS.items() if type(objective) is kind), None)
