"""Several runs as one: the mean of their probabilities or numbers, by file and from the command line."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.finetuning.tasks.choices import MultipleChoice
from plmjax.finetuning.tasks.label_sets import MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, SequenceClassification
from plmjax.inference.predict import predict
from tests.inference.conftest import LABELS, TEXTS


@pytest.mark.nightly
def test_probabilities_are_the_mean_of_the_runs(classifiers: Path, capsys: pytest.CaptureFixture) -> None:
    one, two, both = (
        [record["probabilities"] for record in predict(classifiers / name, classifiers / "dev.jsonl", ensemble=others)]
        for name, others in (("one", ()), ("two", ()), ("one", (classifiers / "two",)))
    )
    for first, second, mean in zip(one, two, both, strict=True):
        assert mean == pytest.approx({label: (first[label] + second[label]) / 2 for label in LABELS}, abs=2e-6)
    right = [max(mean, key=mean.get) == text["label"] for mean, text in zip(both, TEXTS, strict=True)]
    command = ["evaluate", str(classifiers / "one"), "--ensemble", str(classifiers / "two"), "--json"]
    cli.run(command)
    found = json.loads(capsys.readouterr().out)
    assert found["eval/accuracy"] == pytest.approx(np.mean(right)) and "eval/loss" not in found
    written = (classifiers / "one" / "evaluations" / "dev_with_two" / "predictions.tsv").read_text().splitlines()
    assert [line.split("\t")[2] for line in written[1:]] == [max(mean, key=mean.get) for mean in both]
    options = ["--input", str(classifiers / "dev.jsonl"), "--ensemble", str(classifiers / "two")]
    cli.run(["predict", str(classifiers / "one"), *options])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["probabilities"] for line in lines] == both


def test_each_kind_has_its_mean() -> None:
    one, two = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[0.0, 0.0], [-1.0, 2.0]])

    def mean(objective, choices: int = 1) -> np.ndarray:
        return np.stack(objective.averaged([[*one], [*two]], SimpleNamespace(choices=choices)))

    def softmax(x: np.ndarray) -> np.ndarray:
        return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)

    np.testing.assert_allclose(np.exp(mean(SequenceClassification())), (softmax(one) + softmax(two)) / 2)
    np.testing.assert_allclose(mean(Regression()), (one + two) / 2)
    shares = (1 / (1 + np.exp(-one)) + 1 / (1 + np.exp(-two))) / 2
    np.testing.assert_allclose(1 / (1 + np.exp(-mean(MultiLabelClassification()))), shares)
    (certain,) = MultiLabelClassification().averaged([[np.float32([-30, 40])]] * 2, SimpleNamespace(choices=1))
    assert certain.tolist() == [-np.inf, np.inf]  # without a warning
    flat = MultipleChoice().averaged([[*one.ravel()], [*two.ravel()]], SimpleNamespace(choices=2))
    np.testing.assert_allclose(np.exp(flat).reshape(2, 2), (softmax(one) + softmax(two)) / 2)
