"""Experiments that are changed by options, the parts of a run, and the numbers that are refused."""

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
from plmjax.experiment import Data, Experiment, Phase, Training, override
from plmjax.training import optimizers
from plmjax.training.optimizers import Lamb, StochasticGradientDescent
from plmjax.training.optimizers.schedules import Cosine, Linear, SlantedTriangular
from tests.paths import ROOT
from tests.third_party import experiments


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--training.steps=60"], "training.steps", 60),
        (["--training.evaluation-batch_size", "8"], "training.evaluation_batch_size", 8),
        (["--optimizer.learning_rate", "1e-3"], "optimizer.learning_rate", 1e-3),
        (["--optimizer.schedule.warmup-steps", "500"], "optimizer.schedule.warmup_steps", 500),
        (["--mesh.zero", "False"], "mesh.zero", False),
        (["--data.input", "a.txt", "b.txt"], "data.input", ["a.txt", "b.txt"]),
        (["--model.hidden_size", "32"], "model.hidden_size", 32),
        (["--phases.1.sequence_length", "24"], "phases.1.sequence_length", 24),
        (["--tracking.wandb=-a=b-c"], "tracking.wandb", "-a=b-c"),
        (["--checkpoint.best", "-eval/mlm_accuracy"], "checkpoint.best", "-eval/mlm_accuracy"),
        (["--optimizer.decay_exclude"], "optimizer.decay_exclude", []),
    ],
)
def test_an_option_changes_its_field_alone(arguments, field, value):
    before = dataclasses.replace(experiments.bert(), phases=(Phase(0.9), Phase(0.1, sequence_length=32)))
    after = override(before, arguments)
    assert isinstance(after, Experiment)
    assert experiment.differences(before, after) == {field: (experiment.flatten(before)[field], value)}


def test_a_number_or_a_flag_that_may_be_none_is_unset() -> None:
    word = "None"
    run = experiments.bert()
    run = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, classifier_dropout=0.5, bos_token_id=7),
        tokenizer=dataclasses.replace(run.tokenizer, lowercase=True),
    )
    options = ("model.classifier_dropout", "model.bos_token_id", "tokenizer.lowercase")
    changed = override(run, [part for option in options for part in (f"--{option}", word)])
    assert [experiment.flatten(changed)[option] for option in options] == [None, None, None]
    assert override(run, ["--model.classifier_dropout=none"]).model.classifier_dropout is None
    assert override(changed, ["--model.classifier_dropout", "0.25"]).model.classifier_dropout == 0.25
    assert override(changed, ["--tokenizer.lowercase", "False"]).tokenizer.lowercase is False
    with pytest.raises(UserError, match=f"Expected a value of type int for --model.hidden_size, found '{word}'"):
        override(run, ["--model.hidden_size", word])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training.stps", "60"], "found '--training.stps'; did you mean '--training.steps'?"),
        (["--training.steps", "many"], "Expected a value of type int for --training.steps, found 'many'; change it."),
        (["--model.classifier_dropout", "high"], "type float or None for --model.classifier_dropout, found 'high'"),
        (["--training.steps"], "Expected a value of type int for --training.steps, found 'nothing'; change it."),
        (["--training.seed", "4294967296"], "found 4294967296"),
        (["--optimizer.schedule", "linaer"], "for --optimizer.schedule, found 'linaer'; did you mean 'linear'?"),
        (["--optimizer", "sgd", "--optimizer.beta1", "0"], "found '--optimizer.beta1'"),
        (["60"], "Expected an option such as --training.steps 60, found '60'; start it with --."),
        (["--model.hidden_size", "17"], "divides by the heads, found 17 and 2 heads"),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments, message, capsys):
    with pytest.raises(UserError) as raised:
        override(experiments.bert(), arguments)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert capsys.readouterr().err == ""


def test_another_rule_and_schedule_keep_the_values_that_they_have_too():
    run = experiments.changed(experiments.bert(), optimizer={"weight_decay": 0.5, "beta1": 0.8})
    changed = override(
        run, ["--optimizer.schedule.warmup_steps=7", "--optimizer.momentum", "0.9", "--optimizer", "sgd"]
    )
    assert changed.optimizer == StochasticGradientDescent(
        learning_rate=1e-2,
        schedule=Linear(warmup_steps=7),
        weight_decay=0.5,
        decay_exclude=("layer_norm", "bias"),
        momentum=0.9,
    )
    changed = override(run, ["--optimizer.schedule", "cosine", "--optimizer=lamb", "--training.steps", "5"])
    assert changed.training.steps == 5
    assert changed.optimizer == Lamb(learning_rate=1e-2, schedule=Cosine(warmup_steps=2), weight_decay=0.5, beta1=0.8)
    changed = override(run, ["--optimizer.schedule", "slanted_triangular", "--optimizer.schedule.ratio", "8"])
    assert changed.optimizer.schedule == SlantedTriangular(ratio=8.0)


def test_steps_of_a_profile_are_a_first_and_a_last_one() -> None:
    for steps in ((0, 5), (5, 3), (1, 2, 3)):
        with pytest.raises(UserError, match="a first and a last step from 1 on, found " + " ".join(map(str, steps))):
            Training(profile_steps=steps)
    assert Training(profile_steps=(1, 1)).profile_steps == (1, 1)


PACKAGES = (objectives, optimizers, layouts, compression, finetuning, experiment)
BY_OTHERS = {
    "AnswerSearch": {"best", "answer_length", "null_threshold"}, "AwdLstmDropouts": "all", "LedFromBart": "all",
    "LongformerFromRoberta": "all", "NewSourceEncoder": "all", "Tokenizer": "all", "Settings": {"seed"},
    "Phase": {"sequence_length", "batch_size", "accumulation"},
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
    "rate", "mask_fraction", "random_fraction", "label_smoothing", "mask", "permute", "insert", "rotate", "layer_decay",
    "beta1", "beta2", "cut_fraction", "reduction", "momentum", "average_fraction", "held_out", "share", "begin", "end",
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
    if package is experiment:
        yield Data(layout=None)


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
