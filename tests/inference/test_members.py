"""Several runs as one: the mean of their probabilities or numbers, by file, from the command line, and its mistakes."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from plmjax import cli
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.choices import MultipleChoice
from plmjax.finetuning.label_sets import MultiLabelClassification
from plmjax.finetuning.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tagging import TokenTagging
from plmjax.inference.predict import predict
from plmjax.layers.execution import Execution
from plmjax.models.static_vectors import StaticVectorsConfig
from plmjax.training import checkpoints
from tests.systems.modules import random_params

LABELS = ("a", "b", "c")
TEXTS = [{"text": f"a film {number} of the plot", "label": LABELS[number % 3]} for number in range(7)]


@pytest.fixture(scope="module")
def folder(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one task, of models of different widths and of rows of different lengths; one on other labels."""
    folder = tmp_path_factory.mktemp("members")
    (folder / "dev.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    description = checkpoints.describe(checkpoints.find(small_run))
    for name, width, labels in (("one", 4, LABELS), ("two", 6, LABELS), ("other", 4, ("a", "b"))):
        config = StaticVectorsConfig(
            checkpoints.describe(checkpoints.find(small_run)).experiment.model.vocab_size, width
        )
        objective = SequenceClassification(labels=labels)
        data = Sentences(validation=str(folder / "dev.jsonl"), sequence_length=8 * width, pack=width)
        params = jax.tree.map(lambda leaf: 4 * leaf, random_params(objective.module(config, Execution())))
        run = Experiment(model=config, objective=objective, data=data, training=Training(batch_size=2))
        checkpoints.save_parameters(folder / name, params, run, description.tokenizer)
    return folder


def test_probabilities_are_the_mean_of_the_runs(folder: Path, capsys: pytest.CaptureFixture) -> None:
    one, two, both = (
        [record["probabilities"] for record in predict(folder / name, folder / "dev.jsonl", ensemble=others)]
        for name, others in (("one", ()), ("two", ()), ("one", (folder / "two",)))
    )
    for first, second, mean in zip(one, two, both, strict=True):
        assert mean == pytest.approx({label: (first[label] + second[label]) / 2 for label in LABELS}, abs=2e-6)
    right = [max(mean, key=mean.get) == text["label"] for mean, text in zip(both, TEXTS, strict=True)]
    command = ["evaluate", str(folder / "one"), "--ensemble", str(folder / "two"), "--json"]
    cli.run(command)
    found = json.loads(capsys.readouterr().out)
    assert found["eval/accuracy"] == pytest.approx(np.mean(right)) and "eval/loss" not in found
    written = (folder / "one" / "evaluations" / "dev_with_two" / "predictions.tsv").read_text().splitlines()
    assert [line.split("\t")[2] for line in written[1:]] == [max(mean, key=mean.get) for mean in both]
    cli.run(["predict", str(folder / "one"), "--input", str(folder / "dev.jsonl"), "--ensemble", str(folder / "two")])
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
    flat = MultipleChoice().averaged([[*one.ravel()], [*two.ravel()]], SimpleNamespace(choices=2))
    np.testing.assert_allclose(np.exp(flat).reshape(2, 2), (softmax(one) + softmax(two)) / 2)
    with pytest.raises(UserError, match="a task of labels, numbers or choices for --ensemble, found TokenTagging"):
        TokenTagging().averaged([[], []], SimpleNamespace(choices=1))


def test_runs_of_another_kind_are_one_sentence(folder: Path, small_run: Path) -> None:
    with pytest.raises(UserError, match=r"labels a, b, c for --ensemble, found .* labels a, b in .*other; name runs"):
        list(predict(folder / "one", folder / "dev.jsonl", ensemble=[folder / "other"]))
    with pytest.raises(UserError, match=r"Expected runs of SequenceClassification .* found one of BertPretraining in"):
        list(predict(folder / "one", folder / "dev.jsonl", ensemble=[small_run]))
    with pytest.raises(UserError, match="Expected a run on a task for --ensemble"):
        cli.run(["evaluate", str(small_run), "--ensemble", str(folder / "one")])
    with pytest.raises(UserError, match="Expected no --ensemble with --task blimp, found 1 runs"):
        cli.run(["evaluate", str(small_run), "--data", "x", "--task", "blimp", "--ensemble", str(folder / "one")])
