"""A run says what a person would who looks at its settings and at its predictions."""

import dataclasses
from typing import Any

import pytest

from plmjax import experiment as experiments
from plmjax.experiment import Phase
from plmjax.runs import notes


def changed(**training: Any) -> list[str]:
    run = experiments.load("bert_tiny")
    return [*notes.on_settings(dataclasses.replace(run, training=dataclasses.replace(run.training, **training)), run)]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({}, []),
        ({"steps": 100}, ["warm-up of 200 steps", "ends at 50%", "--optimizer.schedule.warmup_steps"]),
        ({"batch_size": 128}, ["4.0 times the tokens", "--training.steps 1000"]),
        ({"batch_size": 128, "steps": 1000}, []),
        ({"batch_size": 8}, []),
    ],
)
def test_settings_that_are_rarely_meant_are_noted(training: dict[str, Any], words: list[str]) -> None:
    found = changed(**training)
    assert len(found) == bool(words) and all(word in found[0] for word in words)


def test_a_warm_up_that_a_phase_restarts_is_noted_if_the_phase_is_shorter() -> None:
    run = experiments.load("bert_tiny")
    changes = ("optimizer.learning_rate=1e-4", "optimizer.schedule.warmup_steps=800")
    run = dataclasses.replace(run, phases=(Phase(fraction=0.9), Phase(fraction=0.1, changes=changes)))
    (found,) = notes.on_settings(run, run)
    assert "800 steps is longer than the 400 steps of the schedule of phase 1, which ends at 50%" in found
    assert found.endswith("lower --phases.1.changes optimizer.schedule.warmup_steps")


@pytest.mark.parametrize(("size", "noted"), [(4096, False), (4000, False), (2000, True)])
def test_rows_of_words_that_no_token_uses_are_noted_if_they_are_many(size: int, noted: bool) -> None:
    run = experiments.load("modernbert_tiny")
    found = [*notes.on_vocabulary(run, size)]
    assert len(found) == noted and all("4,096 rows of words for the 2,000 tokens" in line for line in found)


@pytest.mark.parametrize(
    ("labels", "predictions", "noted"),
    [("good bad", "bad bad", True), ("good bad", "good bad", False), ("bad bad", "bad bad", False), ("", "", False)],
)
def test_predictions_of_one_label_are_noted_if_there_are_several(labels: str, predictions: str, noted: bool) -> None:
    pairs = zip(labels.split(), predictions.split(), strict=True)
    rows = [f"{line}\t{label}\t{prediction}\n" for line, (label, prediction) in enumerate(pairs)]
    found = [*notes.on_predictions({"predictions.tsv": "line\tlabel\tprediction\n" + "".join(rows)})]
    assert len(found) == noted and all("every prediction is 'bad'" in line for line in found)
    assert not [*notes.on_predictions({})]
