"""Tagging, questions and choices end to end: they learn, write, evaluate to the same and resume."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.inference.evaluate import evaluate
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from tests.finetuning.conftest import stopping

PRAISE, BLAME = ("good", "fine", "great"), ("bad", "poor", "awful")
OTHER = ("film", "plot", "actor", "scene", "the", "was", "a")
SPLITS = {"train": 160, "validation": 37}


def sentence(draws: np.random.Generator, *judgements: str) -> list[str]:
    """Some words with the judgements among them."""
    words = draws.choice(OTHER, draws.integers(2, 7)).tolist()
    for judgement in judgements:
        words.insert(int(draws.integers(len(words) + 1)), judgement)
    return words


def tagged(draws: np.random.Generator, count: int) -> str:
    """Words of praise and blame are entities."""
    blocks = []
    for _ in range(count):
        words = sentence(draws, draws.choice(PRAISE), draws.choice(BLAME))
        labels = ["B-GOOD" if word in PRAISE else "B-BAD" if word in BLAME else "O" for word in words]
        blocks.append("".join(f"{word}\t{label}\n" for word, label in zip(words, labels, strict=True)))
    return "\n".join(blocks)


def asked(draws: np.random.Generator, count: int) -> str:
    """Questions for the thing that is praised; nothing is praised in every fourth text."""
    paragraphs = []
    for number in range(count):
        praise = [] if number % 4 == 0 else [str(draws.choice(PRAISE))]
        context = " ".join(sentence(draws, *praise, draws.choice(BLAME)))
        answers = [{"text": word, "answer_start": context.index(word)} for word in praise]
        entry = {"id": f"q{number}", "question": "what praise", "answers": answers, "is_impossible": not praise}
        paragraphs.append({"context": context, "qas": [entry]})
    return json.dumps({"version": "v2.0", "data": [{"title": "films", "paragraphs": paragraphs}]}, indent=1)


def chosen(draws: np.random.Generator, count: int) -> str:
    """The choice of the one of three sentences that praises."""
    rows = []
    for _ in range(count):
        right = int(draws.integers(3))
        choices = [" ".join(sentence(draws, draws.choice(PRAISE if n == right else BLAME))) for n in range(3)]
        rows.append({"context": " ".join(sentence(draws)), "choices": choices, "label": right})
    return "".join(json.dumps(row) + "\n" for row in rows)


KINDS = {
    "tagging": (tagged, "conll", Tagging(scheme="IOB2"), TokenTagging(entities=True), "f1"),
    "questions": (asked, "json", Questions(stride=8, question_length=8), SpanExtraction(), "exact"),
    "choices": (chosen, "jsonl", Choices(), MultipleChoice(), "accuracy"),
}
EVERY = pytest.mark.parametrize(
    "finished",
    [pytest.param(kind, marks=() if kind == "tagging" else pytest.mark.nightly) for kind in KINDS],
    indirect=True,
)
"""2 to 4 s each: pytest -m nightly tests/finetuning/test_kinds.py"""
GOOD_ENOUGH = {"tagging": 0.9, "questions": 90.0, "choices": 0.9}


def files_of(kind: str, folder) -> dict[str, str]:
    make, suffix = KINDS[kind][:2]
    for number, (split, count) in enumerate(SPLITS.items()):
        (folder / f"{split}.{suffix}").write_text(make(np.random.default_rng(number), count), encoding="utf-8")
    return {"train": f"train.{suffix}", "validation": f"validation.{suffix}", "folder": str(folder)}


def experiment(kind: str, folder, **training) -> Experiment:
    """A few seconds of training, several examples a row."""
    _, _, data, objective, _ = KINDS[kind]
    data = dataclasses.replace(data, **files_of(kind, folder), sequence_length=48, pack=4)
    return Experiment(
        model=None, objective=objective, data=data, checkpoint=Checkpoint(every=0),
        optimizer=BertAdamW(learning_rate=0.004),
        training=Training(steps=0, batch_size=8, log_every=10, **training),
        finetuning=Finetuning(epochs=12.0, warmup=0.1),
    )  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def finished(request, small_run, tmp_path_factory):
    """(kind, experiment, run directory, metrics) of a run that was never interrupted."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    run = experiment(kind, folder)
    return kind, run, folder / "run", finetune(run, small_run, folder / "run")


@EVERY
def test_learns_writes_what_it_predicts_and_evaluates_to_the_same(finished, tmp_path):
    kind, run, workdir, metrics = finished
    assert metrics[f"eval/{KINDS[kind][4]}"] > GOOD_ENOUGH[kind]
    assert json.loads((workdir / "evaluation.json").read_text()) == metrics
    if kind == "questions":
        examples = run.data.read("validation")
        said = json.loads((workdir / "predictions.json").read_text())
        assert list(said) == examples.ids == list(json.loads((workdir / "null_odds.json").read_text()))
        golds = [gold[0][1] if gold else "" for gold in examples.answers]
        right = [said[name] == gold for name, gold in zip(examples.ids, golds, strict=True)]
        assert 100 * np.mean(right) == pytest.approx(metrics["eval/exact"])
        assert metrics["eval/no_answer_f1"] > 50 and metrics["eval/best_f1"] >= metrics["eval/f1"]
        best = json.loads((workdir / "nbest_predictions.json").read_text())
        assert all(sum(one["probability"] for one in found) == pytest.approx(1) for found in best.values())
    else:
        rows = [line.split("\t") for line in (workdir / "predictions.tsv").read_text().splitlines()[1:] if line]
        right = np.mean([row[1] == row[2] for row in rows])
        assert right == pytest.approx(metrics["eval/accuracy"])
        assert len(rows) == (37 if kind != "tagging" else sum(map(len, run.data.read("validation").words)))
    assert evaluate(workdir, output=tmp_path) == pytest.approx(metrics, abs=1e-5)
    name = "predictions.json" if kind == "questions" else "predictions.tsv"
    mine, theirs = ((folder / name).read_text().splitlines() for folder in (tmp_path, workdir))
    assert [line.split("\t")[:3] for line in mine] == [line.split("\t")[:3] for line in theirs]  # and a probability


@EVERY
def test_stopped_and_run_again_it_ends_in_the_same_parameters(finished, small_run, tmp_path):
    _, run, workdir, metrics = finished
    with stopping(after=7):
        finetune(run, small_run, tmp_path)
    assert finetune(run, small_run, tmp_path) == metrics
    params = [jax.tree.leaves(checkpoints.load_parameters(folder)[0]) for folder in (tmp_path, workdir)]
    assert all(np.array_equal(a, b) for a, b in zip(*params, strict=True))
