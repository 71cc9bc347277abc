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
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Hosts, Mesh, Phase, Training, override
from plmjax.experiment.override import normalize_option
from plmjax.experiment.phases import ResolvedPhase
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
        (["--training.steps", "60"], "training.steps", 60),
        (["--training.steps=60"], "training.steps", 60),
        (["--training.batch-size", "8"], "training.batch_size", 8),
        (["--optimizer.learning-rate=-0"], "optimizer.learning_rate", 0.0),
        (["--optimizer.learning_rate", "1e-3"], "optimizer.learning_rate", 1e-3),
        (["--optimizer.schedule.warmup-steps", "500"], "optimizer.schedule.warmup_steps", 500),
        (["--mesh.zero", "False"], "mesh.zero", False),
        (["--data.input", "a.txt", "b.txt"], "data.input", ["a.txt", "b.txt"]),
        (["--training.profile_steps", "3", "5"], "training.profile_steps", [3, 5]),
        (["--model.hidden_size", "32"], "model.hidden_size", 32),
        (["--data.layout.pack", "4"], "data.layout.pack", 4),
        (["--objective.rate", "0.2"], "objective.rate", 0.2),
        (["--checkpoint.best", "-eval/mlm_accuracy"], "checkpoint.best", "-eval/mlm_accuracy"),
        (["--optimizer.decay_exclude"], "optimizer.decay_exclude", []),
    ],
)
def test_an_option_changes_its_field_alone(arguments, field, value):
    before = experiments.bert()
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


def test_several_options_and_a_phase():
    run = dataclasses.replace(experiments.bert(), phases=(Phase(0.9), Phase(0.1, sequence_length=32)))
    changed = override(run, ["--training.steps", "5", "--training.seed", "3", "--phases.1.sequence_length", "24"])
    assert (changed.training.steps, changed.training.seed) == (5, 3)
    assert changed.phases == (Phase(0.9), Phase(0.1, sequence_length=24))
    assert override(run, []) == run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training.stps", "60"], "found '--training.stps'; did you mean '--training.steps'?"),
        (["--steps", "60"], "found '--steps'"),
        (["--model.type", "x"], "found '--model.type'; did you mean '--model.type_vocab_size'?"),
        (["--training.steps", "many"], "Expected a value of type int for --training.steps, found 'many'; change it."),
        (
            ["--model.classifier_dropout", "high"],
            "Expected a value of type float or None for --model.classifier_dropout, found 'high'; change it.",
        ),
        (["--training.steps", "1.5"], "Expected a value of type int for --training.steps, found '1.5'; change it."),
        (["--training.steps"], "Expected a value of type int for --training.steps, found 'nothing'; change it."),
        (["--training.seed", "-1"], "Expected --training.seed from 0 to 4294967295, found -1; change it."),
        (["--training.seed", "4294967296"], "found 4294967296"),
        (["--mesh.zero", "maybe"], "Expected a value of type bool for --mesh.zero, found 'maybe'; change it."),
        (["--optimizer", "bert_adam"], "for --optimizer, found 'bert_adam'; did you mean 'bert_adamw'?"),
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


LEAST = {
    Data: {"max_unknown": 0, "sequence_length": 1, "shuffle_window": 1, "held_out": 0},
    Training: {
        **dict.fromkeys(("batch_size", "accumulation", "log_every"), 1),
        **dict.fromkeys(("steps", "seed", "patience", "unroll", "evaluate_every", "evaluation_batches"), 0),
        **dict.fromkeys(("evaluation_batch_size", "evaluation_sequence_length"), 0),
    },
    Finetuning: dict.fromkeys(("epochs", "warmup", "evaluations", "unfreeze", "dropout"), 0),
    Checkpoint: dict.fromkeys(("every", "keep", "minutes"), 0),
    Mesh: dict.fromkeys(("data", "fsdp", "tensor"), 0),
    Hosts: dict.fromkeys(("silent_seconds", "stall_minutes", "activity_minutes"), 0),
    Phase: dict.fromkeys(("sequence_length", "batch_size", "accumulation"), 0),
}
"""Group of settings -> its numbers, and the least of each."""
NEEDED = {Data: {"layout": None}, Phase: {"fraction": 0.5}}


@pytest.mark.parametrize("group", LEAST, ids=lambda group: group.__name__)
def test_a_number_below_its_least_is_named(group: type) -> None:
    """And a share above one."""
    needed = NEEDED.get(group, {})
    for name, least in LEAST[group].items():
        assert getattr(group(**needed, **{name: least}), name) == least
        for wrong in (least - 1, *([1.5] if name in ("held_out", "warmup", "dropout") else ())):
            with pytest.raises(UserError, match=rf"--\w+(\.N)?\.{name} "):
                group(**needed, **{name: wrong})


@pytest.mark.parametrize("steps", [(0, 5), (5, 3), (1, 2, 3), (-1,)])
def test_steps_of_a_profile_are_a_first_and_a_last_one(steps: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="a first and a last step from 1 on, found " + " ".join(map(str, steps))):
        Training(profile_steps=steps)
    for right in ((), (1,), (1, 1), (2, 7)):
        assert Training(profile_steps=right).profile_steps == right


@pytest.mark.parametrize(
    "option", ["--training.evaluation-batch-size", "--training.evaluation_batch-size", "training.evaluation-batch_size"]
)
def test_every_dash_in_the_name_of_an_option_is_an_underscore(option: str) -> None:
    assert normalize_option(option) == "--training.evaluation_batch_size"
    changed = override(experiments.bert(), ["--training.evaluation-batch-size", "5", "--tracking.wandb=-a=b-c"])
    assert (changed.training.evaluation_batch_size, changed.tracking.wandb) == (5, "-a=b-c")


def resolve(*parts: Phase, steps: int = 1000) -> tuple[ResolvedPhase, ...]:
    run = experiments.changed(experiments.gpt2(), training={"steps": steps, "accumulation": 2})
    return dataclasses.replace(run, phases=parts).resolved_phases


def test_a_run_has_one_phase_or_several():
    """BERT spends nine tenths at a shorter length."""
    assert resolve(steps=7) == (ResolvedPhase(0, 0, 7, 16, 16, 2, schedule_steps=7),)
    short, long = resolve(Phase(0.9), Phase(0.1, sequence_length=32, batch_size=4, accumulation=1))
    assert short == ResolvedPhase(0, 0, 900, 16, 16, 2, schedule_steps=1000)
    assert long == ResolvedPhase(1, 900, 100, 32, 4, 1, declared=1, schedule_steps=1000)


@pytest.mark.parametrize("steps", [3, 10, 997])
def test_phases_cover_every_step_once(steps):
    parts = resolve(*[Phase(1 / 3)] * 3, steps=steps)
    assert [part.first_step for part in parts] == [0, *(part.last_step for part in parts[:-1])]
    assert parts[-1].last_step == steps


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({}, (16, 16)), ({"evaluation_batch_size": 4}, (16, 4)), ({"evaluation_sequence_length": 24}, (24, 16))],
)
def test_an_evaluation_has_the_sizes_of_its_phase_but_for_its_own(settings, sizes):
    run = experiments.changed(experiments.gpt2(), training={"steps": 7, "accumulation": 2} | settings)
    (phase,) = run.resolved_phases
    evaluated = phase.evaluation
    assert (evaluated.sequence_length, evaluated.batch_size, evaluated.accumulation) == (*sizes, 1)
    assert (evaluated.first_step, evaluated.last_step) == (0, 7)


def test_rows_without_a_token_are_refused():
    with pytest.raises(UserError, match=r"--data\.sequence_length of at least 1, found 0"):
        _ = experiments.changed(experiments.gpt2(), data={"sequence_length": 0}).resolved_phases


@pytest.mark.parametrize(
    ("parts", "steps", "message"),
    [
        ((Phase(0.5), Phase(0.4)), 10, "add up to 1, found 0.9"),
        ((Phase(0.99), Phase(0.01)), 10, "Expected at least one step in phase 1"),
        ((), 0, "at least one step, found 0"),
    ],
)
def test_phases_that_cannot_be_are_named(parts, steps, message):
    with pytest.raises(UserError) as raised:
        resolve(*parts, steps=steps)
    assert message in str(raised.value)


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
