"""Experiments as data: loaded from a file, changed by options, written and read back."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.experiment import (
    Checkpoint,
    Data,
    Experiment,
    Finetuning,
    Hosts,
    Mesh,
    Phase,
    Training,
    catalogue,
    override,
)
from plmjax.experiment.catalogue import functions
from plmjax.experiment.override import normalized_option
from plmjax.training.optimizers import Lamb, Optimizer, StochasticGradientDescent
from plmjax.training.optimizers.schedules import Cosine, Linear, Schedule, SlantedTriangular
from tests.paths import ROOT
from tests.third_party import experiments

RUNS = [f"{file}:{name}" for file in sorted((ROOT / "experiments").glob("*.py")) for name in functions(file)]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", RUNS, ids=lambda name: Path(name).name)
def test_every_experiment_survives_json(name, tmp_path):
    run = experiment.load(name)
    experiment.write(run, tmp_path / "experiment.json")
    again = experiment.read(tmp_path / "experiment.json")
    assert again == run
    assert experiment.differences(run, again) == {}
    written = json.loads((tmp_path / "experiment.json").read_text())["objective"]
    assert written is None if run.objective is None else written["type"].startswith("plmjax.")


@pytest.mark.parametrize("name", ["bert", "gpt2", "recurrent"])
def test_a_function_of_a_file_and_classes_of_its_own_survive_json(name):
    run = experiment.load(f"tests/third_party/experiments.py:{name}")
    assert run == getattr(experiments, name)()
    assert experiment.from_dict(json.loads(json.dumps(experiment.to_dict(run)))) == run


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "experiments/bert_tny.py",
            "found no file 'experiments/bert_tny.py'; did you mean 'experiments/bert_tiny.py'?",
        ),
        ("nowhere/x.py", "give the path of a Python file"),
        ("experiments/bert_tiny", "did you mean 'experiments/bert_tiny.py'?"),
        ("tests/third_party/experiments.py:recurent", "found 'recurent'"),
        ("tests/third_party/experiments.py:recurent", "did you mean 'recurrent'?"),
        ("tests/third_party/experiments.py", "Expected a function 'experiment'"),
        ("README.md", "README.md"),
    ],
)
def test_a_wrong_reference_is_answered_with_the_nearest(reference, message):
    with pytest.raises(UserError) as raised:
        experiment.load(reference)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("def experiment():\n    return 3\n", "to return a plmjax.experiment.Experiment, found int"),
        ("def experiment(:\n", "line 1"),
        ("import no_such_module\n", "no_such_module"),
        ("def experiment(size):\n    return size\n", "size"),
    ],
)
def test_a_broken_file_is_one_sentence(contents, message, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(contents)
    with pytest.raises(UserError) as raised:
        experiment.load(str(file))
    assert message in str(raised.value) and "\n" not in str(raised.value) and "broken.py" in str(raised.value)


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


@pytest.mark.parametrize("word", ["none", "None"])
def test_a_number_or_a_flag_that_may_be_none_is_unset(word: str) -> None:
    run = experiments.bert()
    run = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, classifier_dropout=0.5, bos_token_id=7),
        tokenizer=dataclasses.replace(run.tokenizer, lowercase=True),
    )
    options = ("model.classifier_dropout", "model.bos_token_id", "tokenizer.lowercase")
    changed = override(run, [part for option in options for part in (f"--{option}", word)])
    assert [experiment.flatten(changed)[option] for option in options] == [None, None, None]
    assert override(run, [f"--model.classifier_dropout={word}"]).model.classifier_dropout is None
    assert override(changed, ["--model.classifier_dropout", "0.25"]).model.classifier_dropout == 0.25
    assert override(changed, ["--tokenizer.lowercase", "False"]).tokenizer.lowercase is False
    with pytest.raises(UserError, match=f"Expected a value of type int for --model.hidden_size, found '{word}'"):
        override(run, ["--model.hidden_size", word])


def test_help_says_what_may_be_none(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        override(experiments.bert(), ["--help"])
    shown = capsys.readouterr().out
    assert "--model.classifier_dropout FLOAT|none" in shown and "--model.bos_token_id INT|none" in shown
    assert "--tokenizer.lowercase {True,False}|none" in shown and "--model.hidden_size INT " in shown


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
        (
            ["--optimizer", "bert_adam"],
            "for --optimizer, found 'bert_adam'; did you mean 'bert_adamw'?",
        ),
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
    assert "--training.steps" in text and "Number of optimizer steps of the whole run" in text
    assert "--optimizer.beta2" in text and "--optimizer.schedule.warmup_steps" in text and "momentum" not in text
    known = [*Optimizer.choices().values(), *Schedule.choices().values()]
    assert all(one.name in text for one in known if one.__module__.startswith("plmjax."))
    with pytest.raises(SystemExit):
        override(experiments.bert(), ["--optimizer", "sgd", "--help"], command="plmjax pretrain")
    text = capsys.readouterr().out
    assert "--optimizer.momentum" in text and "--optimizer.beta2" not in text


def test_nothing_is_imported_because_a_file_names_it(tmp_path, monkeypatch):
    """A class of a user's own file is found once that file has been loaded, and not before; nor is any other thing."""
    file = tmp_path / "mine_alone.py"
    file.write_text(
        "import dataclasses\n\n\n@dataclasses.dataclass(frozen=True)\nclass Mine:\n    size: int = 3\n\n\n"
        "def experiment():\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"type": "mine_alone:Mine", "size": 4}
    with pytest.raises(UserError, match="Expected a class of plmjax or of a loaded experiment file, found 'mine_alone"):
        experiment.from_dict(named)
    assert "mine_alone" not in sys.modules
    catalogue.load_classes(str(file))
    assert experiment.from_dict(named).size == 4
    for other in ("subprocess:Popen", "os:system", "plmjax.files.storage:remove", "nowhere:Class"):
        with pytest.raises(UserError, match="Expected a class of plmjax"):
            experiment.from_dict({"type": other})


def test_differences_leave_free_fields_out():
    before = experiments.gpt2()
    after = dataclasses.replace(
        before, checkpoint=Checkpoint(every=9), training=dataclasses.replace(before.training, seed=4)
    )
    assert experiment.differences(before, after, experiment.FREE) == {"training.seed": (0, 4)}
    assert set(experiment.differences(before, after)) == {"training.seed", "checkpoint.every", "checkpoint.minutes"}
    # Of a field that only one of the two has, the other one has None.
    phased = dataclasses.replace(before, phases=(Phase(1.0),))
    fewer, more = experiment.differences(phased, before), experiment.differences(before, phased)
    assert fewer["phases.0.fraction"] == (1.0, None) and more["phases.0.fraction"] == (None, 1.0)
    known = [name for run in RUNS for name in experiment.flatten(experiment.load(run))]
    assert all(any(name.startswith(free) for name in known) for free in experiment.FREE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"steps"', '"stepz"'), "found 'stepz'"),
        (
            lambda text: text.replace("tests.third_party.recurrent:RecurrentConfig", "gone.models:Lost"),
            "'gone.models:Lost'",
        ),
        (lambda text: swapped(text, "model", "mesh"), "Expected Experiment.model of type"),
        (lambda text: swapped(text, "data", "mesh"), "Expected Experiment.data of type DataSettings"),
        (lambda text: swapped(text, "optimizer", "data"), "Expected Experiment.optimizer of type"),
        (lambda text: swapped(text, "generation", "mesh"), "Expected Experiment.generation of type"),
        (lambda text: text[:-20], "Expected an experiment that plmjax wrote"),
        (lambda text: "[]", "Expected an experiment that plmjax wrote"),
        (lambda text: "\x00\xff", "Expected an experiment that plmjax wrote"),
    ],
)
def test_a_damaged_or_foreign_experiment_json_is_one_sentence(change, message, tmp_path):
    file = tmp_path / "experiment.json"
    experiment.write(experiments.recurrent(), file)
    file.write_bytes(change(file.read_text()).encode("latin-1"))
    with pytest.raises(UserError) as raised:
        experiment.read(file)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def swapped(text: str, field: str, other: str) -> str:
    """An experiment.json with one field in place of another."""
    values = json.loads(text)
    return json.dumps(values | {field: values[other]})


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(UserError, match=r"Expected experiment\.json in .*, found none"):
        experiment.read(tmp_path / "experiment.json")


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


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, least in LEAST.items() for name in least])
def test_a_number_below_its_least_is_named(group: type, name: str) -> None:
    least = LEAST[group][name]
    assert getattr(group(**NEEDED.get(group, {}), **{name: least}), name) == least
    with pytest.raises(UserError, match=rf"--\w+(\.N)?\.{name} "):
        group(**NEEDED.get(group, {}), **{name: least - 1})


@pytest.mark.parametrize(("group", "name"), [(Data, "held_out"), (Finetuning, "warmup"), (Finetuning, "dropout")])
def test_a_share_above_one_is_named(group: type, name: str) -> None:
    with pytest.raises(UserError, match=rf"--\w+\.{name} from 0 "):
        group(**NEEDED.get(group, {}), **{name: 1.5})


@pytest.mark.parametrize("steps", [(0, 5), (5, 3), (1, 2, 3), (-1,)])
def test_steps_of_a_profile_are_a_first_and_a_last_one(steps: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="a first and a last step from 1 on, found " + " ".join(map(str, steps))):
        Training(profile_steps=steps)
    for right in ((), (1,), (1, 1), (2, 7)):
        assert Training(profile_steps=right).profile_steps == right


def test_a_compression_changes_what_is_trained_and_what_is_evaluated() -> None:
    """Each in its own way: a student learns from its teacher, and is evaluated on its own task."""

    class Compression:
        def trained(self, objective: object, steps: int) -> tuple:
            return "trained", objective, steps

        def evaluated(self, objective: object, steps: int) -> tuple:
            return "evaluated", objective, steps

    run = dataclasses.replace(experiments.bert(), training=Training(steps=7))
    assert run.trained is run.evaluated is run.objective
    run = dataclasses.replace(run, compression=Compression())
    assert run.trained == ("trained", run.objective, 7) and run.evaluated == ("evaluated", run.objective, 7)


@pytest.mark.parametrize(
    "option", ["--training.evaluation-batch-size", "--training.evaluation_batch-size", "training.evaluation-batch_size"]
)
def test_every_dash_in_the_name_of_an_option_is_an_underscore(option: str) -> None:
    assert normalized_option(option) == "--training.evaluation_batch_size"
    changed = override(experiments.bert(), ["--training.evaluation-batch-size", "5", "--tracking.wandb=-a=b-c"])
    assert (changed.training.evaluation_batch_size, changed.tracking.wandb) == (5, "-a=b-c")
