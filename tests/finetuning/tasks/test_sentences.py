"""Texts with a label, a number or a set of labels: rows, losses as in transformers, predictions."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score

from plmjax.errors import UserError
from plmjax.experiment import load
from plmjax.finetuning.tasks.label_sets import LabelSets, MultiLabelClassification
from plmjax.finetuning.tasks.sentences import Regression, SentenceExamples, Sentences, SequenceClassification
from plmjax.interop import huggingface
from plmjax.models.gpt import GptConfig
from tests.finetuning import parity
from tests.optional import torch
from tests.systems.modules import outputs as outputs_of

B, T = 5, 11
LABELS = ("a", "b", "c")


def batch(labels: np.ndarray) -> dict[str, jax.Array]:
    """Rows of several lengths, the last of which only fills the batch."""
    draws = np.random.default_rng(0)
    lengths = np.array([11, 7, 3, 9, 0])
    real = np.arange(T) < lengths[:, None]
    return {
        "input_ids": jnp.asarray(np.where(real, draws.integers(5, 97, (B, T)), 0), jnp.int32),
        "segment_ids": jnp.asarray(real, jnp.int32),
        "token_type_ids": jnp.asarray(real & (np.arange(T) > lengths[:, None] // 2), jnp.int32),
        "positions": jnp.asarray(real * np.arange(T), jnp.int32),
        "cls_positions": jnp.zeros((B, 1), jnp.int32),
        "example_ids": jnp.array([[4], [0], [2], [1], [-1]], jnp.int32),
        "labels": jnp.asarray(labels)[:, None],
    }


SETS = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 0]], np.float32)
OBJECTIVES = {
    "numbers": Regression(),
    "labels": SequenceClassification(LABELS),
    "sets": MultiLabelClassification(LABELS),
}


@pytest.mark.parametrize(
    "kind", ["numbers", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("labels", "sets"))]
)
def test_outputs_losses_and_gradients_equal_those_of_transformers(tmp_path, kind):
    objective, rows = OBJECTIVES[kind], slice(0, B - 1)
    theirs = parity.reference(tmp_path, "BertForSequenceClassification", objective.outputs)
    if kind == "sets":
        theirs.config.problem_type = "multi_label_classification"
    module, params = huggingface.load(tmp_path)
    assert objective.outputs == module.num_labels
    labels = SETS if kind == "sets" else np.array([2, 0, 1, 1, 2], np.int32)
    logits = outputs_of(module, params, objective.model_inputs(batch(labels))).logits[:, 0]
    if kind == "numbers":
        labels = np.asarray(logits[:, 0]) + np.array([0.5, -1.5, 1.0, 0.25, 99.0], np.float32)
    given, wanted = batch(labels), (parity if kind == "labels" else torch).tensor(labels[rows])
    *_, sums, their = parity.compared(
        tmp_path, theirs, objective, module=module, params=params, given=given, rows=rows, labels=wanted
    )
    np.testing.assert_allclose(logits[rows], their.logits.detach().numpy(), atol=1e-5)
    if kind != "numbers":
        said = their.logits.argmax(-1) if kind == "labels" else their.logits.sigmoid() >= 0.5
        right = (said.numpy() == labels[rows]).reshape(B - 1, -1).all(axis=-1)
        assert tuple(map(int, sums.metrics["accuracy"])) == (right.sum(), 4)


def test_predictions_and_metrics_follow_from_outputs():
    objective = SequenceClassification(("no", "yes"))
    outputs = np.log(np.array([[0.9, 0.1], [0.25, 0.75], [0.6, 0.4]], np.float32)) + 3
    assert objective.predictions(outputs) == [
        {"prediction": "no", "probability": 0.9, "probabilities": {"no": 0.9, "yes": 0.1}},
        {"prediction": "yes", "probability": 0.75, "probabilities": {"no": 0.25, "yes": 0.75}},
        {"prediction": "no", "probability": 0.6, "probabilities": {"no": 0.6, "yes": 0.4}},
    ]
    assert objective.metrics(np.array([0, 1, 1]), outputs)["accuracy"] == pytest.approx(2 / 3)
    numbers = np.array([[1.5], [2.5], [4.0]], np.float32)
    assert Regression().predictions(numbers)[0] == {"prediction": 1.5}
    assert Regression().metrics(np.array([1.0, 2.0, 3.0]), numbers)["spearman"] == pytest.approx(1.0)


def test_numbers_of_gluess_file_are_within_the_limits() -> None:
    """Its server takes scores of STS-B from 0 to 5 alone; all other records have what the model says."""
    found = [{"line": 1, "prediction": number} for number in (-0.25, 0.0, 3.5, 5.75)]
    glue = load("finetune_glue:stsb").objective
    assert list(glue.submission(found)) == ["index\tprediction\n", "0\t0.0\n", "1\t0.0\n", "2\t3.5\n", "3\t5.0\n"]
    assert list(Regression().submission(found))[1] == "0\t-0.25\n"
    assert glue.predictions(np.array([[-0.25]])) == [{"prediction": -0.25}]


NLI = [("a man", "he runs", "entailment"), ("a dog", "it is", "-"), ("a man", "he", "neutral"), ("x", "y", "-")]


def pairs(path: Path, rows: list[tuple[str, str, str]]) -> Sentences:
    path.write_text("".join("\t".join(row) + "\n" for row in [("text", "b", "label"), *rows]))
    return Sentences(train=str(path), validation=str(path), text_pair="b")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_without_a_label_are_left_out_with_a_warning(split: str, tmp_path: Path, caplog) -> None:
    """As SNLI's, on which annotators did not agree."""
    examples = pairs(tmp_path / "snli.tsv", NLI).read(split)
    assert (examples.lines, examples.labels) == ([2, 4], ["entailment", "neutral"])
    assert SequenceClassification().fit_labels(examples).labels == ("entailment", "neutral")
    assert "2 of 4 rows of" in caplog.text and "have the label - (--data.unlabelled), and are left out." in caplog.text
    caplog.clear()
    two = pairs(tmp_path / "two.tsv", [("a", "b", label) for label in "+-+"])
    assert two.read(split).labels == ["+", "-", "+"] and not caplog.text  # - is one of two labels


def test_a_pair_in_both_orders_is_one_example() -> None:
    """Both rows have its label and the same outputs."""
    examples = SentenceExamples("x.tsv", [2, 3, 4], [("11", "12"), ("13", "14"), ("15", "16")], ["a", "b", "b"])
    config, objective = GptConfig.tiny(both_orders=True), SequenceClassification(("a", "b"))
    encoded = objective.encode(examples, parity.NumbersOfGpt(), config, Sentences(text_pair="b", sequence_length=8))
    assert (encoded.choices, encoded.sequence_fields["labels"].tolist()) == (2, [0, 0, 1, 1, 1, 1])
    rows = [encoded.tokens[a:b].tolist() for a, b in itertools.pairwise(encoded.offsets)]
    assert rows[:3] == [[90, 11, 91, 12, 92], [90, 12, 91, 11, 92], [90, 13, 91, 14, 92]]
    outputs = [np.array(one, np.float32) for one in ([1, 0], [1, 0], [0, 1], [0, 1], [0, 2], [0, 2])]
    metrics, files = objective.evaluate_outputs(examples, encoded, outputs)
    assert metrics["accuracy"] == 1.0
    said = [line.split("\t")[:3] for line in files["predictions.tsv"].splitlines()[1:]]
    assert said == [["2", "a", "a"], ["3", "b", "b"], ["4", "b", "b"]]


def test_the_labels_of_the_experiment_keep_their_order_and_three_have_a_mean_f1() -> None:
    train = SentenceExamples("x.tsv", [1, 2, 3], [("1",)] * 3, ["b", "a", "b"])
    assert SequenceClassification().fit_labels(train).labels == ("a", "b")
    given = SequenceClassification(("c", "b", "a")).fit_labels(train)
    assert given.labels == ("c", "b", "a") and given.numbers(train).tolist() == [1, 2, 1]
    assert given.metric_names == ("accuracy", "macro_f1", "matthews")
    assert SequenceClassification(("a", "b")).metric_names == ("accuracy", "f1", "matthews")


def test_sets_and_their_metrics_follow_from_outputs():
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
    assert list(objective.submission(found)) == ["index\tprediction\n", '0\t["a", "c"]\n', "1\t[]\n", '2\t["a", "b"]\n']


@pytest.mark.parametrize(
    ("name", "text", "separator"),
    [
        ("x.jsonl", '{"text": "t", "label": ["b", "a"]}\n{"text": "u", "label": []}\n{"text": "v", "label": "c"}', ","),
        ("x.csv", 'text,label\nt,"b| |a|b|"\nu,\nv,c\n', "|"),  # blank parts are no labels
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
    encoded = SimpleNamespace(sequence_fields={"labels": objective.numbers(examples)}, choices=1)
    outputs = [np.float32(one) for one in ([2, -1, 0], [-3, -9, -1], [-3, -9, 1])]
    metrics, files = objective.evaluate_outputs(examples, encoded, outputs)
    rows = [line.split("\t")[1:] for line in files["predictions.tsv"].splitlines()]
    assert rows[:3] == [["label", "prediction"], ['"[""b"", ""a""]"', '"[""a"", ""c""]"'], ["[]", "[]"]]
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(UserError, match=r"Expected labels seen in training, found 'c' in line 3|line 4"):
        MultiLabelClassification(("a", "b")).numbers(examples)
