"""Predictions for files without labels, by one run or several: in order, what evaluation writes of the same."""

import csv
import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.finetuning.tasks.choices import MultipleChoice
from plmjax.finetuning.tasks.label_sets import MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging
from plmjax.inference import predict as prediction
from plmjax.inference.evaluate import evaluate
from plmjax.inference.predict import predict
from tests.inference.conftest import COUNT, KINDS, LABELS, TEXTS


def written(folder: Path, name: str = "predictions.tsv") -> list[dict]:
    return list(csv.DictReader(io.StringIO((folder / name).read_text()), delimiter="\t"))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_of_a_file_with_labels_and_without_is_what_evaluation_writes(kind, tuned, tmp_path):
    checkpoint, labelled, bare = tuned(kind)
    evaluate(checkpoint, Path(labelled), tmp_path)
    found = list(predict(checkpoint, bare))
    packed = tmp_path / f"{Path(bare).name}.gz"
    packed.write_bytes(gzip.compress(Path(bare).read_bytes()))
    again = list(predict(checkpoint, packed))

    def without_lines(records):
        return [{name: value for name, value in record.items() if name != "line"} for record in records]

    assert found == again and without_lines(found) == without_lines(predict(checkpoint, labelled))
    if kind == "questions":
        names = {"predictions": "prediction", "nbest_predictions": "nbest", "null_odds": "null_odds"}
        for file, name in names.items():
            expected = json.loads((tmp_path / f"{file}.json").read_text())
            assert expected == {record["id"]: record[name] for record in found}
        assert len(set(expected)) == len(found) == 2 * COUNT
        assert len({record["prediction"] for record in found}) > 3
    elif kind == "tagged":
        rows = written(tmp_path)
        pairs_of = [pair for record in found for pair in zip(record["words"], record["predictions"], strict=True)]
        assert pairs_of == [(row["form"], row["prediction"]) for row in rows]
        assert {label for _, label in pairs_of} == {"B-A", "O"}
        cut = found[3]["probabilities"]
        assert cut[0] and cut[-1] is None and None not in found[2]["probabilities"]
    else:
        rows = written(tmp_path)
        said = [record["prediction"] for record in found]
        assert said == [row["prediction"] for row in rows] and len(rows) == COUNT and len(set(said)) > 1
        assert [f"{record['probability']:.6f}" for record in found] == [row["probability"] for row in rows]
        assert all(sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5) for record in found)


@pytest.mark.parametrize("kind", ["single", pytest.param("questions", marks=pytest.mark.nightly)])
def test_a_long_file_is_predicted_in_parts_and_in_order(kind, tuned, monkeypatch):
    checkpoint, _, bare = tuned(kind)
    whole = list(predict(checkpoint, bare))
    monkeypatch.setattr(prediction, "PART", 5)
    for mine, theirs in zip(predict(checkpoint, bare), whole, strict=True):
        assert mine.keys() == theirs.keys() and mine["line"] == theirs["line"]
        if kind == "single":
            assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
        else:
            assert mine["id"] == theirs["id"] and mine["null_odds"] == pytest.approx(theirs["null_odds"], abs=1e-3)


def test_predictions_come_while_the_file_is_read(tuned, tmp_path, fails, monkeypatch):
    """The first part is there before a mistake after it is met; a file of predictions is whole or absent."""
    checkpoint, _, _ = tuned("single")
    monkeypatch.setattr(prediction, "PART", 4)
    (tmp_path / "rows.jsonl").write_text('{"text": "a film"}\n' * 6 + "no json\n")
    found = predict(checkpoint, tmp_path / "rows.jsonl")
    assert [next(found)["line"] for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(UserError, match="line 7"):
        next(found)
    assert "line 7" in fails("predict", checkpoint, "--input", tmp_path / "rows.jsonl", "--output", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_predictions_of_a_file_of_conll_have_its_lines(tuned, tmp_path, capsys):
    """With -DOCSTART-, which begins a document and is no sentence to train on."""
    checkpoint, _, _ = tuned("tagged")
    document = "-DOCSTART-\n\na\nfine\nfilm\n\nthe\nplot\n\n"
    (tmp_path / "rows.conll").write_text(document * 2)
    said = run(capsys, checkpoint, "--input", tmp_path / "rows.conll", "--format", "official")
    assert [line.split("\t")[0] for line in said.splitlines()] == (document * 2).splitlines()
    assert said.startswith("-DOCSTART-\tO\n\na\t")
    found = list(predict(checkpoint, tmp_path / "rows.conll"))
    assert [len(record["words"]) for record in found] == [1, 3, 2] * 2
    assert (found[0]["predictions"], found[0]["probabilities"]) == (["O"], [None])
    labelled = document.replace("\n", "\tO\n").replace("\n\tO\n", "\n\n")
    (tmp_path / "labelled.conll").write_text(labelled)
    assert len(Tagging(train=str(tmp_path / "labelled.conll")).read("train")) == 2


def run(capsys, *arguments: object) -> str:
    capsys.readouterr()
    cli.run(["predict", *map(str, arguments)])
    return capsys.readouterr().out


@pytest.mark.nightly
def test_official_formats(tuned, capsys):
    checkpoint, _, bare = tuned("single")
    said = run(capsys, checkpoint, "--input", bare, "--format", "official").splitlines()
    assert [line.split("\t")[0] for line in said] == ["index", *map(str, range(COUNT))]
    checkpoint, _, bare = tuned("questions")
    said = run(capsys, checkpoint, "--input", bare, "--format", "official", "--objective.null_threshold=-1e9")
    assert list(json.loads(said)) == [record["id"] for record in predict(checkpoint, bare)]
    assert set(json.loads(said).values()) == {""}


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
        return np.stack(objective.average_outputs([[*one], [*two]], SimpleNamespace(choices=choices)))

    def softmax(x: np.ndarray) -> np.ndarray:
        return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)

    np.testing.assert_allclose(np.exp(mean(SequenceClassification())), (softmax(one) + softmax(two)) / 2)
    np.testing.assert_allclose(mean(Regression()), (one + two) / 2)
    shares = (1 / (1 + np.exp(-one)) + 1 / (1 + np.exp(-two))) / 2
    np.testing.assert_allclose(1 / (1 + np.exp(-mean(MultiLabelClassification()))), shares)
    (certain,) = MultiLabelClassification().average_outputs([[np.float32([-30, 40])]] * 2, SimpleNamespace(choices=1))
    assert certain.tolist() == [-np.inf, np.inf]  # without a warning
    flat = MultipleChoice().average_outputs([[*one.ravel()], [*two.ravel()]], SimpleNamespace(choices=2))
    np.testing.assert_allclose(np.exp(flat).reshape(2, 2), (softmax(one) + softmax(two)) / 2)
