"""Fine-tuning end to end on a task of made-up sentences."""

import csv
import dataclasses
import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.inference.evaluate import evaluate
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from tests.finetuning.conftest import stopping


@pytest.fixture(scope="module", autouse=True)
def devices_of_runs() -> None:
    """All eight: here a task is trained over a mesh."""


def experiment(sentiment, **changes) -> Experiment:
    run = Experiment(
        model=None, objective=SequenceClassification(), checkpoint=Checkpoint(every=0),
        data=Sentences(*sentiment, text="sentence", sequence_length=24), optimizer=BertAdamW(learning_rate=3e-3),
        training=Training(steps=0, batch_size=16, log_every=10), finetuning=Finetuning(epochs=4.0, warmup=0.1),
    )  # fmt: skip
    return dataclasses.replace(run, **changes)


def short(sentiment, **changes) -> Experiment:
    """Three steps."""
    run = experiment(sentiment, training=Training(steps=3, batch_size=16, seed=5), **changes)
    return dataclasses.replace(run, finetuning=Finetuning(warmup=0.1))


def same(left, right) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))


@pytest.fixture(scope="module")
def finished(sentiment, small_run, tmp_path_factory):
    """(run directory, metrics) of a run that was never interrupted."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, finetune(experiment(sentiment), small_run, workdir)


@pytest.mark.nightly  # a run on one device by day, in test_kinds.py
def test_learns_writes_what_it_predicts_and_evaluates_to_the_same(sentiment, finished, tmp_path):
    workdir, metrics = finished
    assert metrics["eval/accuracy"] > 0.95 and metrics["eval/loss"] < 0.3 < math.log(2)
    with (workdir / "predictions.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with open(sentiment[1]) as file:
        expected = [row["label"] for row in csv.DictReader(file, delimiter="\t")]
    assert [row["label"] for row in rows] == expected and rows[0]["line"] == "2"
    right = np.mean([row["label"] == row["prediction"] for row in rows])
    assert right == pytest.approx(metrics["eval/accuracy"])
    saved = checkpoints.describe(checkpoints.find(workdir))
    assert saved.experiment.objective.labels == ("negative", "positive")
    assert saved.experiment.training.steps == saved.step == 50 and saved.experiment.optimizer.schedule.warmup_steps == 5
    assert evaluate(workdir) == pytest.approx(metrics, abs=1e-6)
    written = (workdir / "evaluations" / "validation" / "predictions.tsv").read_text()
    assert written == (workdir / "predictions.tsv").read_text()
    train = evaluate(workdir, sentiment[0], tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == train
    assert (workdir / "predictions.tsv").read_text() == written
    assert train["eval/accuracy"] > 0.95 and train["eval/loss"] != metrics["eval/loss"]


@pytest.mark.nightly
def test_stopped_and_run_again_it_ends_in_the_same_parameters(sentiment, small_run, finished, tmp_path):
    with stopping(after=20):
        finetune(experiment(sentiment), small_run, tmp_path)
    stopped_at = checkpoints.describe(checkpoints.find(tmp_path)).step
    assert 0 < stopped_at < 50
    assert finetune(experiment(sentiment), small_run, tmp_path) == finished[1]
    assert same(checkpoints.load_parameters(tmp_path)[0], checkpoints.load_parameters(finished[0])[0])


@pytest.mark.nightly
def test_regression_and_the_random_twin(sentiment, small_run, tmp_path):
    paths = []
    for split, path in zip(("train", "validation"), sentiment, strict=True):
        text = Path(path).read_text().replace("positive\t", "1.5\t").replace("negative\t", "-0.5\t")
        (tmp_path / f"{split}.tsv").write_text(text)
        paths.append(str(tmp_path / f"{split}.tsv"))
    (pretrained, before), found = checkpoints.load_parameters(small_run), {}
    own = {"model": before.experiment.model, "tokenizer": Tokenizer(path=str(small_run / "tokenizer"))}
    for name, given, like in (("given", own, None), ("like", {}, small_run)):
        run = short(paths, objective=Regression(), **given)
        metrics = finetune(run, "random", tmp_path / name, like=like)
        assert {"eval/loss", "eval/pearson", "eval/spearman"} <= metrics.keys()
        assert metrics["eval/loss"] == pytest.approx(metrics["eval/mean_squared_error"], rel=1e-5)
        params, after = checkpoints.load_parameters(tmp_path / name)
        assert after.experiment.model == before.experiment.model and after.tokenizer == before.tokenizer
        found[name] = params
    words = [one["bert"]["embeddings"]["word_embeddings"]["embedding"].ravel() for one in (pretrained, found["like"])]
    assert abs(np.corrcoef(*words)[0, 1]) < 0.1 and same(found["given"], found["like"])


@pytest.mark.nightly
def test_a_run_goes_on_from_its_own_start_and_files_alone(sentiment, small_run, finished, tmp_path):
    with pytest.raises(UserError, match=r"Expected the parameters of .*small, .*, found the parameters of .*finished"):
        finetune(experiment(sentiment), finished[0], finished[0])
    other = experiment(sentiment, optimizer=BertAdamW(learning_rate=1e-5))
    with pytest.raises(UserError, match=r"Expected optimizer.learning_rate = 0.003, found 1e-05"):
        finetune(other, small_run, finished[0])
    copied = [shutil.copy(path, tmp_path / Path(path).name) for path in sentiment]
    assert finetune(experiment([str(path) for path in copied]), small_run, finished[0]) == finished[1]
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("positive\ta great film\n")
    with pytest.raises(UserError, match="fingerprint"):
        finetune(experiment([str(path) for path in copied]), small_run, finished[0])
