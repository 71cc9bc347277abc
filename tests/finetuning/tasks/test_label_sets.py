"""Any number of labels a row: read from cells and lists, lost and learned as transformers' multi-label problem."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from plmjax.errors import UserError
from plmjax.finetuning.tasks.label_sets import LabelSetExamples, LabelSets, MultiLabelClassification
from plmjax.interop import huggingface
from tests.finetuning import parity
from tests.finetuning.tasks.test_sentences import B, batch
from tests.optional import torch

LABELS = ("a", "b", "c")


@pytest.mark.nightly
def test_losses_and_gradients_equal_those_of_transformers(tmp_path):
    theirs = parity.reference(tmp_path, "BertForSequenceClassification", 3)
    theirs.config.problem_type = "multi_label_classification"
    module, params = huggingface.load(tmp_path)
    labels = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 0]], np.float32)
    given, objective, rows = batch(labels), MultiLabelClassification(LABELS), slice(0, B - 1)
    *_, sums, their = parity.compared(
        tmp_path, theirs, objective, module, params, given, rows, labels=torch.tensor(labels[rows])
    )
    hits, weight = sums.metrics["accuracy"]
    right = ((their.logits.sigmoid().detach().numpy() >= 0.5) == labels[rows]).all(axis=-1)
    assert weight == 4 and hits == right.sum()


def test_predictions_and_metrics_follow_from_outputs():
    outputs = np.array([[2.0, -1.0, 0.0], [-3.0, -90.0, -1.0], [90.0, 1.5, -2.0]], np.float32)
    objective = MultiLabelClassification(LABELS)
    found = objective.predictions(outputs)
    assert [one["prediction"] for one in found] == [["a", "c"], [], ["a", "b"]]
    assert found[0]["probabilities"] == {"a": 0.880797, "b": 0.268941, "c": 0.5}
    labels = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 0]], np.float32)
    metrics, held = objective.metrics(labels, outputs), [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    for average in ("micro", "macro"):
        assert metrics[f"{average}_f1"] == pytest.approx(f1_score(labels, held, average=average))
    assert metrics["accuracy"] == pytest.approx(1 / 3) and set(metrics) == set(objective.metric_names)
    strict = MultiLabelClassification(LABELS, threshold=0.9).predictions(outputs)
    assert [one["prediction"] for one in strict] == [[], [], ["a"]]
    strict = MultiLabelClassification(LABELS, threshold=0.9).metrics(labels, outputs)
    assert strict["micro_f1"] == pytest.approx(2 * 1 / (1 + 4))  # one label is predicted, of four that there are
    assert list(objective.official(found)) == ["index\tprediction\n", '0\t["a", "c"]\n', "1\t[]\n", '2\t["a", "b"]\n']


@pytest.mark.parametrize(
    ("name", "text", "separator"),
    [
        (
            "x.jsonl",
            '{"text": "t", "label": ["b", "a"]}\n{"text": "u", "label": []}\n{"text": "v", "label": "c"}\n',
            ",",
        ),
        ("x.tsv", "text\tlabel\nt\tb, a\nu\t\nv\tc\n", ","),
        ("x.csv", 'text,label\nt,"b|a|b"\nu,\nv,c\n', "|"),
        ("x.tsv", "text\tlabel\nt\tb a\nu\t\nv\tc\n", ""),
    ],
)
def test_labels_of_a_cell(name, text, separator, tmp_path):
    (tmp_path / name).write_text(text)
    examples = LabelSets(train=str(tmp_path / name), separator=separator).read("train")
    assert examples.labels == [("b", "a"), (), ("c",)]
    objective = MultiLabelClassification().fit_labels(examples)
    assert objective.labels == LABELS
    np.testing.assert_array_equal(objective.numbers(examples), [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    with pytest.raises(UserError, match=r"Expected labels seen in training, found 'c' in line 3|line 4"):
        MultiLabelClassification(("a", "b")).numbers(examples)


def test_predictions_are_written_beside_the_labels_as_lists() -> None:
    examples = LabelSetExamples("x.tsv", [2, 4], [("t",), ("u",)], [("b", "a"), ()])
    objective, outputs = MultiLabelClassification(LABELS), [np.float32([2, -1, 0]), np.float32([-3, -9, -1])]
    encoded = SimpleNamespace(sequence_fields={"labels": objective.numbers(examples)}, choices=1)
    metrics, files = objective.answer(examples, encoded, outputs)
    rows = [*csv.DictReader(files["predictions.tsv"].splitlines(), delimiter="\t")]
    assert rows == [
        {"line": "2", "label": '["b", "a"]', "prediction": '["a", "c"]'},
        {"line": "4", "label": "[]", "prediction": "[]"},
    ]  # fmt: skip
    assert metrics["accuracy"] == 0.5 and {*metrics} == {*objective.metric_names}
