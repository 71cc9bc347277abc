"""Numbers of an experiment have ranges: one outside is refused as soon as it is set, by every class that has it."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from plmjax import compression, experiment, finetuning, objectives
from plmjax.data import layouts
from plmjax.errors import UserError
from plmjax.training import optimizers

PACKAGES = (objectives, optimizers, layouts, compression, finetuning, experiment)
BY_OTHERS = {
    "AnswerSearch": {"best", "answer_length", "null_threshold"}, "AwdLstmDropouts": "all", "LedFromBart": "all",
    "LongformerFromRoberta": "all", "NewSourceEncoder": "all", "Tokenizer": "all", "Settings": {"seed"},
    "Questions": {"stride", "question_length"}, "SpanExtraction": {"best", "answer_length", "null_threshold"},
}  # fmt: skip
"""Class -> its numbers that are checked when a text is read or a model is made, or that may be any number."""
ABOVE_0 = {
    "rate", "ngram", "window", "min_count", "row_updates", "longest_path", "shared", "longest_span", "context",
    "mean_length", "x_max", "layer_decay", "factored_from", "ratio", "pack", "duplicates", "copies", "candidates",
    "temperature", "steps_per_layer", "end", "scores_learning_rate", "sparsity", "penalty_weight", "size", "factor",
    "sequence_length", "batch_size", "accumulation", "log_every",
    "NegativeSampling.negatives", "StochasticGradientDescent.patience", "Windows.overlap",
    "MultiLabelClassification.threshold", "SoftMovementPruning.threshold",
}  # fmt: skip
"""Numbers that are not 0, of every class or of one."""
SHARES = {
    "rate", "mask_share", "random_share", "label_smoothing", "mask", "permute", "insert", "rotate", "layer_decay",
    "beta1", "beta2", "cut_fraction", "reduction", "momentum", "average_share", "held_out", "share", "begin", "end",
    "sparsity", "dropout", "warmup", "MultiLabelClassification.threshold", "Plateau.threshold", "single_probability",
    "short_probability", "random_next_probability", "swap_probability", "random_probability",
}  # fmt: skip
"""Numbers that are not above 1."""


def settings_of(package: ModuleType) -> Iterator[Any]:
    """The settings of a package, with their defaults."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        file = importlib.import_module(found.name)
        for kind in vars(file).values():
            if inspect.isclass(kind) and kind.__module__ == file.__name__ and dataclasses.is_dataclass(kind):
                fields = [field for field in dataclasses.fields(kind) if field.init]
                missing = (dataclasses.MISSING, dataclasses.MISSING)
                needed = any((field.default, field.default_factory) == missing for field in fields)
                if not needed and not inspect.isabstract(kind) and not kind.__name__.endswith(("Mixture", "WithText")):
                    yield kind()


def outside(name: str, field: str, number: float) -> list[float]:
    """Numbers outside of the range of a field."""
    kind, names = type(number), {field, f"{name}.{field}"}
    return [kind(-2), *([kind(0)] if names & ABOVE_0 else []), *([1.5] if names & SHARES else [])]


@pytest.mark.parametrize("package", PACKAGES, ids=[package.__name__ for package in PACKAGES])
def test_a_number_outside_of_its_range_is_refused(package: ModuleType) -> None:
    taken, tried = [], 0
    for settings in settings_of(package):
        name = type(settings).__name__
        for field in dataclasses.fields(settings):
            number, others = getattr(settings, field.name), BY_OTHERS.get(name, ())
            if type(number) not in (int, float) or not field.init or others == "all" or field.name in others:
                continue
            if field.name == "static_seed":  # any number
                continue
            for wrong in outside(name, field.name, number):
                tried += 1
                try:
                    dataclasses.replace(settings, **{field.name: wrong})
                    taken.append(f"{name}.{field.name} = {wrong}")
                except UserError as error:
                    assert str(error).startswith("Expected ")
    assert not taken and tried > 5
