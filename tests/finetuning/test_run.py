"""Fine-tuning end to end on a task of made-up sentences."""

import csv
import dataclasses
import json
import math
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training, load, override
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.tasks.questions import SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.inference.evaluate import evaluate
from plmjax.inference.fill_mask import fill_mask
from plmjax.models.bert import BertConfig
from plmjax.parallel.stopping import Interrupted
from plmjax.runs.finetuning import check_length, finetune, in_head, resolve
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.start import transfer
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear


@pytest.fixture(scope="module", autouse=True)
def devices_of_runs() -> None:
    """All eight: here a task is trained over a mesh."""


def experiment(sentiment, **changes) -> Experiment:
    run = Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(*sentiment, text="sentence", sequence_length=24),
        optimizer=BertAdamW(learning_rate=3e-3),
        training=Training(steps=0, batch_size=16, log_every=10),
        finetuning=Finetuning(epochs=4.0, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )
    return dataclasses.replace(run, **changes)


def short(sentiment, **changes) -> Experiment:
    """Three steps."""
    run = experiment(sentiment, training=Training(steps=3, batch_size=16, seed=5), **changes)
    return dataclasses.replace(run, finetuning=Finetuning(warmup=0.1))


def with_model(run: Experiment) -> Experiment:
    """As a checkpoint's model fills it in."""
    return dataclasses.replace(run, model=BertConfig.tiny())


def same(left, right) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))


@pytest.fixture(scope="module")
def finished(sentiment, small_run, tmp_path_factory):
    """(run directory, metrics) of a run that was never interrupted."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, finetune(experiment(sentiment), small_run, workdir)


def test_learns_and_writes_what_it_predicts(sentiment, finished):
    workdir, metrics = finished
    assert metrics["eval/accuracy"] > 0.95 and metrics["eval/loss"] < 0.3 < math.log(2)
    assert json.loads((workdir / "evaluation.json").read_text()) == metrics
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


def test_its_checkpoint_evaluates_to_the_same(sentiment, finished):
    workdir, metrics = finished
    again = evaluate(workdir)
    assert again.keys() == metrics.keys()
    assert again == pytest.approx(metrics, abs=1e-6)
    written = (workdir / "evaluations" / "validation" / "predictions.tsv").read_text()
    assert written == (workdir / "predictions.tsv").read_text()
    train = evaluate(workdir, sentiment[0])
    assert json.loads((workdir / "evaluations" / "train" / "evaluation.json").read_text()) == train
    assert (workdir / "predictions.tsv").read_text() == written
    assert train["eval/accuracy"] > 0.95 and train["eval/loss"] != metrics["eval/loss"]
    with pytest.raises(UserError, match="Expected a checkpoint with masked_language_model/bias"):
        fill_mask(workdir, "a [MASK]")


@pytest.mark.nightly
def test_stopped_and_run_again_it_ends_in_the_same_parameters(sentiment, small_run, finished, tmp_path, monkeypatch):
    train = TaskSource.train

    def stopping(self, phase, start, places):
        for number, batch in enumerate(train(self, phase, start, places)):
            if number == 20:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    monkeypatch.setattr(TaskSource, "train", stopping)
    with pytest.raises(Interrupted, match="SIGTERM"):
        finetune(experiment(sentiment), small_run, tmp_path)
    monkeypatch.undo()
    stopped_at = checkpoints.describe(checkpoints.find(tmp_path)).step
    assert 0 < stopped_at < 50
    assert finetune(experiment(sentiment), small_run, tmp_path) == finished[1]
    assert same(checkpoints.load_parameters(tmp_path)[0], checkpoints.load_parameters(finished[0])[0])


@pytest.mark.nightly
def test_frozen_encoder_stays_what_it_was(sentiment, small_run, tmp_path):
    run = short(sentiment, optimizer=BertAdamW(learning_rate=1e-2, frozen=("bert",)))
    finetune(run, small_run, tmp_path)
    before, after = (checkpoints.load_parameters(workdir)[0] for workdir in (small_run, tmp_path))
    assert same(before["bert"], after["bert"])
    assert np.abs(after["classifier"]["bias"]).max() > 0  # it began at zero


def test_dropout_of_the_encoder_is_the_tasks_own(sentiment, small_run, tmp_path):
    losses = set()
    for rate in (None, 0.0, 0.3):
        run = short(sentiment)
        finetune(
            dataclasses.replace(run, finetuning=Finetuning(warmup=0.1, dropout=rate)), small_run, tmp_path / f"{rate}"
        )
        model = checkpoints.describe(checkpoints.find(tmp_path / f"{rate}")).experiment.model
        assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == (rate or 0.0)
        losses.add(json.loads((tmp_path / f"{rate}" / "evaluation.json").read_text())["eval/loss"])
    assert len(losses) == 2  # the checkpoint's own is none
    with pytest.raises(UserError, match=r"--finetuning\.dropout from 0 to below 1, found 1"):
        Finetuning(dropout=1.0)


@pytest.mark.nightly
def test_regression_and_the_random_twin(sentiment, small_run, tmp_path):
    paths = []
    for split, path in zip(("train", "validation"), sentiment, strict=True):
        text = Path(path).read_text().replace("positive\t", "1.5\t").replace("negative\t", "-0.5\t")
        (tmp_path / f"{split}.tsv").write_text(text)
        paths.append(str(tmp_path / f"{split}.tsv"))
    model = checkpoints.describe(checkpoints.find(small_run)).experiment.model
    own = Tokenizer(path=str(small_run / "tokenizer"))
    run = short(paths, model=model, tokenizer=own, objective=Regression())
    metrics = finetune(run, "random", tmp_path / "run")
    assert {"eval/loss", "eval/pearson", "eval/spearman"} <= metrics.keys()
    assert metrics["eval/loss"] == pytest.approx(metrics["eval/mean_squared_error"], rel=1e-5)
    words = [
        checkpoints.load_parameters(workdir)[0]["bert"]["embeddings"]["word_embeddings"]["embedding"]
        for workdir in (small_run, tmp_path / "run")
    ]
    assert abs(np.corrcoef(words[0].ravel(), words[1].ravel())[0, 1]) < 0.1


def test_a_checkpoint_gives_all_but_the_head(small_run):
    pretrained, _ = checkpoints.load_parameters(small_run)
    device = jax.device_put(jax.tree.map(np.zeros_like, pretrained["bert"]))
    given = {"bert": device, "classifier": {"bias": jax.numpy.ones(3)}}
    params = transfer(pretrained, given, small_run, in_head)
    assert same(params["bert"], pretrained["bert"]) and same(params["classifier"], given["classifier"])
    given["bert"]["pooler"]["kernel"] = jax.numpy.zeros((3, 3))
    with pytest.raises(UserError, match=r"Expected bert/pooler/kernel of shape \(3, 3\) .*, found \(32, 32\)"):
        transfer(pretrained, given, small_run, in_head)


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


def test_length_is_given_once(sentiment):
    assert resolve(with_model(experiment(sentiment)), 200).training.steps == 4 * 200 // 16
    assert resolve(with_model(short(sentiment)), 200).training.steps == 3
    both = experiment(sentiment, training=Training(steps=3))
    with pytest.raises(UserError, match=r"either --finetuning.epochs or --training.steps, found 4 and 3"):
        check_length(both)
    warm = experiment(sentiment, optimizer=BertAdamW(schedule=Linear(warmup_steps=3)))
    with pytest.raises(UserError, match=r"found 3 and 0.1; set one of them to 0"):
        check_length(warm)


@pytest.mark.nightly
def test_the_random_twin_of_a_checkpoint_is_named_by_it(sentiment, small_run, tmp_path):
    metrics = finetune(short(sentiment), "random", tmp_path / "run", like=small_run)
    assert metrics["eval/loss"] > 0
    pretrained, before = checkpoints.load_parameters(small_run)
    params, after = checkpoints.load_parameters(tmp_path / "run")
    assert after.experiment.model == before.experiment.model
    assert after.tokenizer == before.tokenizer
    words, drawn = (tree["bert"]["embeddings"]["word_embeddings"]["embedding"] for tree in (pretrained, params))
    assert words.shape == drawn.shape and not np.allclose(words, drawn, atol=0.01)


def test_mistakes_are_named_before_anything_is_computed(sentiment, small_run, tmp_path):
    def refused(message, source=small_run, **changes):
        with pytest.raises(UserError, match=message):
            finetune(experiment(sentiment, **changes), source, tmp_path / "run")

    model = checkpoints.describe(checkpoints.find(small_run)).experiment.model
    refused("whose hidden_size is 32, found model.hidden_size = 64", model=dataclasses.replace(model, hidden_size=64))
    refused("no finished checkpoint", source=tmp_path)
    refused(
        "for --from random, or a file of vectors, found none; name a checkpoint that has one with --like",
        source="random",
    )
    refused("Expected a tokenizer for a task of Sentences, found none; set", source="random", model=model)
    with pytest.raises(UserError, match="Expected --like only with --from random"):
        finetune(experiment(sentiment), small_run, tmp_path / "run", like=small_run)
    other = tmp_path / "tokenizer"
    tokenizers.train("wordpiece", 60, ["some other text of other words"] * 9, other)
    refused("Expected the tokenizer of the checkpoint", tokenizer=Tokenizer(path=str(other)))
    lines = Path(sentiment[0]).read_text().splitlines()
    (tmp_path / "one.tsv").write_text("\n".join(lines[:1] + [line for line in lines if line.startswith("pos")]))
    task = experiment(sentiment).data
    refused(
        "two different labels .*found 'positive' only", data=dataclasses.replace(task, train=str(tmp_path / "one.tsv"))
    )
    (tmp_path / "new.tsv").write_text("\n".join([*lines[:5], "neutral\ta film"]))
    refused(
        "a label seen in training, found 'neutral' in line 6 of .*new.tsv; known: negative, positive",
        data=dataclasses.replace(task, validation=str(tmp_path / "new.tsv")),
    )
    refused(
        "Expected Questions for the objective SpanExtraction, found a task of Sentences", objective=SpanExtraction()
    )
    with pytest.raises(UserError, match=r"--data\.pack of at least 1, found 0"):
        dataclasses.replace(task, pack=0)
    refused("Expected a number to predict, found '(nega|posi)tive' in line 2", objective=Regression())
    pretraining = load("experiments/bert_tiny.py")
    with pytest.raises(UserError, match=r"a task and an objective of plmjax.finetuning, found Data"):
        finetune(pretraining, small_run, tmp_path / "run")


def test_the_experiment_file_takes_any_task(sentiment):
    arguments = ["--data.train", sentiment[0], "--data.text", "sentence", "--training.batch_size", "8"]
    for function in ("experiment", "regression", "label_sets", "subjectivity", "snli"):
        run = override(load(f"experiments/finetune_sentences.py:{function}"), arguments)
        assert run.data.train == sentiment[0] and run.training.batch_size == 8 and run.model is None
    with pytest.raises(UserError, match=r"found '--model.hidden_size'"):
        override(run, ["--model.hidden_size", "64"])
