"""experiment.json: read as it was written, and refused in one sentence where somebody changed it."""

import json
from pathlib import Path
from typing import Any

import pytest

from plmjax import experiment, experiments
from plmjax.errors import UserError
from plmjax.experiment import catalogue

FILES = [experiments.FOLDER / f"{name}.py" for name in catalogue.names()]
WRONG: dict[str, tuple[str, Any, str]] = {
    "a group that is text": ("checkpoint", "often", "Expected Experiment.checkpoint of type Checkpoint"),
    "a group of another class": (
        "training",
        {"type": "plmjax.experiment.settings:Mesh"},
        "Experiment.training of type",
    ),
    "a number that is text": ("training.steps", "60", "Expected Training.steps of type int .*, found '60'"),
    "a number that is a list": (
        "optimizer.learning_rate",
        [1e-4],
        r"learning_rate of type float .*, found \(0.0001,\)",
    ),
    "a whole number with a fraction": ("training.steps", 60.5, "Training.steps of type int"),
    "a number that is true": ("training.batch_size", True, "Training.batch_size of type int"),
    "text that is a number": ("data.format", 3, "format of type .*, found 3"),
    "a list that is text": ("data.input", "text.txt", "input of type .*, found 'text.txt'"),
    "a list of numbers": ("data.input", [1], r"input of type .*, found \(1,\)"),
    "no class": ("model", {}, "found: no 'type'; name another run"),
    "a class that is a number": ("model.type", 7, "found 7"),
    "a field that does not exist": ("training.stepps", 1, "found 'stepps'; did you mean 'steps'?"),
    "nested too deeply": ("data.input", None, "nested too deeply"),
}


@pytest.mark.parametrize("field, value, sentence", WRONG.values(), ids=WRONG)
def test_a_changed_experiment_is_one_sentence_that_names_the_file(
    field: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    record = experiment.to_dict(experiment.load("bert_tiny"))
    *groups, name = field.split(".")
    place = record
    for group in groups:
        place = place[group]
    place[name] = value
    text = json.dumps(record)
    file = tmp_path / "experiment.json"
    file.write_text(text.replace("null", "[" * 50_000 + "]" * 50_000) if value is None else text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"{sentence}") as raised:
        experiment.read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


def test_every_experiment_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in [f"{path}:{function}" for path in FILES for function in catalogue.functions(path)]:
        run = experiment.load(name)
        experiment.write(run, tmp_path / "experiment.json")
        assert experiment.read(tmp_path / "experiment.json") == run


def test_infinity_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name, options in (
        ("t5_mixture", ["--data.temperature", "inf"]),
        ("bert_tiny", ["--data.mixture.sources", "a=b", "--data.mixture.temperature", "inf"]),
    ):
        run = experiment.override(experiment.load(name), options)
        experiment.write(run, tmp_path / "experiment.json")
        assert experiment.read(tmp_path / "experiment.json") == run
