"""Experiments that are changed by options, and the numbers that they refuse."""

import dataclasses

import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Hosts, Mesh, Phase, Training, override
from plmjax.experiment.override import normalized_option
from plmjax.training.optimizers import Lamb, Optimizer, StochasticGradientDescent
from plmjax.training.optimizers.schedules import Cosine, Linear, Schedule, SlantedTriangular
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


def test_help_prints_the_fields_own_words(capsys):
    with pytest.raises(SystemExit) as raised:
        override(experiments.bert(), ["--help"], command="plmjax pretrain")
    text = " ".join(capsys.readouterr().out.split())
    assert raised.value.code == 0
    assert "--model.classifier_dropout FLOAT|none" in text and "--model.bos_token_id INT|none" in text
    assert "--tokenizer.lowercase {True,False}|none" in text and "--model.hidden_size INT " in text
    assert "--training.steps" in text and "Number of optimizer steps of the whole run" in text
    assert "--optimizer.beta2" in text and "--optimizer.schedule.warmup_steps" in text and "momentum" not in text
    known = [*Optimizer.choices().values(), *Schedule.choices().values()]
    assert all(one.name in text for one in known if one.__module__.startswith("plmjax."))
    with pytest.raises(SystemExit):
        override(experiments.bert(), ["--optimizer", "sgd", "--help"], command="plmjax pretrain")
    text = capsys.readouterr().out
    assert "--optimizer.momentum" in text and "--optimizer.beta2" not in text


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
    assert normalized_option(option) == "--training.evaluation_batch_size"
    changed = override(experiments.bert(), ["--training.evaluation-batch-size", "5", "--tracking.wandb=-a=b-c"])
    assert (changed.training.evaluation_batch_size, changed.tracking.wandb) == (5, "-a=b-c")
