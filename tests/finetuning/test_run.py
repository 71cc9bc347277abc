"""Fine-tuning end to end on a task of made-up sentences."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest

from plmjax.experiment import Checkpoint, Experiment, Optimizer, Training
from plmjax.finetuning.objectives import SequenceClassification
from plmjax.finetuning.run import finetune
from plmjax.finetuning.tasks import Task
from plmjax.training import checkpoints


def experiment(sentiment, **changes) -> Experiment:
    run = Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Task(*sentiment, text="sentence", sequence_length=24, epochs=4.0, warmup=0.1),
        optimizer=Optimizer(learning_rate=3e-3),
        training=Training(steps=0, batch_size=16, log_every=10),
        checkpoint=Checkpoint(every=0),
    )
    return dataclasses.replace(run, **changes)


def test_learns_and_writes_what_it_predicts(sentiment, small_run, tmp_path):
    metrics = finetune(experiment(sentiment), small_run, tmp_path)
    assert metrics["eval/accuracy"] > 0.95 and metrics["eval/loss"] < 0.3 < math.log(2)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == metrics
    with (tmp_path / "predictions.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with open(sentiment[1]) as file:
        expected = [row["label"] for row in csv.DictReader(file, delimiter="\t")]
    assert [row["label"] for row in rows] == expected and rows[0]["line"] == "2"
    right = np.mean([row["label"] == row["prediction"] for row in rows])
    assert right == pytest.approx(metrics["eval/accuracy"])
    saved = checkpoints.describe(checkpoints.find(tmp_path))
    assert saved.experiment.objective.labels == ("negative", "positive")
    assert saved.experiment.training.steps == saved.step == 50 and saved.experiment.optimizer.warmup_steps == 5
