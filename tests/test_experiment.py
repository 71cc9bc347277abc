"""Experiments as data: loaded from a file, changed by options, written and read back."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from plmjax import experiment
from plmjax.catalogue import functions
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Experiment, Phase, override
from plmjax.finetuning.sentences import Sentences
from tests.strangers import experiments

ROOT = Path(__file__).resolve().parents[1]
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
    assert json.loads((tmp_path / "experiment.json").read_text())["objective"]["type"].startswith("plmjax.")


@pytest.mark.parametrize("name", ["bert", "causal", "recurrent"])
def test_a_function_of_a_file_and_classes_of_its_own_survive_json(name):
    run = experiment.load(f"tests/strangers/experiments.py:{name}")
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
        ("tests/strangers/experiments.py:casual", "no function 'casual'"),
        ("tests/strangers/experiments.py:casual", "did you mean 'causal'?"),
        ("tests/strangers/experiments.py", "no function 'experiment'"),
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
        ("def experiment():\n    return 3\n", "must return a plmjax.experiment.Experiment, found int"),
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
        (["--optimizer.schedule", "cosine"], "optimizer.schedule", "cosine"),
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


def test_several_options_and_a_phase():
    run = dataclasses.replace(experiments.bert(), phases=(Phase(0.9), Phase(0.1, sequence_length=32)))
    changed = override(run, ["--training.steps", "5", "--training.seed", "3", "--phases.1.sequence_length", "24"])
    assert (changed.training.steps, changed.training.seed) == (5, 3)
    assert changed.phases == (Phase(0.9), Phase(0.1, sequence_length=24))
    assert override(run, []) == run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training.stps", "60"], "no option '--training.stps'; did you mean '--training.steps'?"),
        (["--steps", "60"], "no option '--steps'"),
        (["--model.type", "x"], "no option '--model.type'; did you mean '--model.type_vocab_size'?"),
        (["--training.steps", "many"], "--training.steps takes a value of type int, found 'many'."),
        (
            ["--model.classifier_dropout", "high"],
            "--model.classifier_dropout takes a value of type float or None, found 'high'.",
        ),
        (["--training.steps", "1.5"], "--training.steps takes a value of type int, found '1.5'."),
        (["--training.steps"], "--training.steps takes a value of type int, found 'nothing'."),
        (["--training.seed", "-1"], "Expected --training.seed from 0 to 4294967295, found -1."),
        (["--training.seed", "4294967296"], "found 4294967296"),
        (["--mesh.zero", "maybe"], "--mesh.zero takes a value of type bool, found 'maybe'."),
        (["60"], "Expected an option such as --training.steps 60, found '60'."),
        (["--model.hidden_size", "17"], "divides by the heads, found 17 and 2 heads"),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments, message, capsys):
    with pytest.raises(UserError) as raised:
        override(experiments.bert(), arguments)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert capsys.readouterr().err == ""


def test_help_prints_the_fields_own_words(capsys):
    with pytest.raises(SystemExit) as raised:
        override(experiments.bert(), ["--help"], command="plmjax pretrain")
    text = " ".join(capsys.readouterr().out.split())
    assert raised.value.code == 0
    assert "--training.steps" in text and "Optimizer steps of the whole run" in text


def test_a_class_that_has_moved_is_found_where_it_is_now():
    older = {"type": "plmjax.finetuning.tasks:Task", "train": "a.tsv", "text": "sentence", "sequence_length": 64}
    assert experiment.from_dict(older) == Sentences(train="a.tsv", text="sentence", sequence_length=64)
    for place in experiment.MOVED.values():
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_differences_leave_free_fields_out():
    before = experiments.causal()
    after = dataclasses.replace(
        before, checkpoint=Checkpoint(every=9), training=dataclasses.replace(before.training, seed=4)
    )
    assert experiment.differences(before, after, experiment.FREE) == {"training.seed": (0, 4)}
    assert set(experiment.differences(before, after)) == {"training.seed", "checkpoint.every", "checkpoint.minutes"}
    known = [name for run in RUNS for name in experiment.flatten(experiment.load(run))]
    assert all(any(name.startswith(free) for name in known) for free in experiment.FREE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"steps"', '"stepz"'), "sets Training.stepz"),
        (lambda text: text.replace("tests.strangers.causal:CausalConfig", "gone.models:Lost"), "'gone.models:Lost'"),
        (lambda text: text[:-20], "is not an experiment that plmjax wrote"),
        (lambda text: "[]", "is not an experiment that plmjax wrote"),
        (lambda text: "\x00\xff", "is not an experiment that plmjax wrote"),
    ],
)
def test_a_damaged_or_foreign_experiment_json_is_one_sentence(change, message, tmp_path):
    file = tmp_path / "experiment.json"
    experiment.write(experiments.causal(), file)
    file.write_bytes(change(file.read_text()).encode("latin-1"))
    with pytest.raises(UserError) as raised:
        experiment.read(file)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(UserError, match=r"Expected experiment\.json in .*, found none"):
        experiment.read(tmp_path / "experiment.json")
