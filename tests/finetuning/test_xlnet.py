"""XLNet downstream: rows that end in [CLS] and are padded on the left, and the search for answers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning import inputs as task_inputs
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.questions import Questions
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.inference.evaluate import evaluate
from plmjax.runs.finetuning import finetune
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import BertAdamW
from tests.finetuning.test_kinds import files_of


def experiment(objective: Any, data: Any, epochs: float = 8.0) -> Experiment:
    return Experiment(
        model=None, objective=objective, data=dataclasses.replace(data, sequence_length=32),
        optimizer=BertAdamW(learning_rate=0.003), checkpoint=Checkpoint(every=0),
        training=Training(steps=0, batch_size=16, log_every=10, unroll=1),
        finetuning=Finetuning(epochs=epochs, warmup=0.1),
    )  # fmt: skip


@pytest.mark.nightly
def test_sentences_are_labelled_at_their_last_token(xlnet_run, sentiment, tmp_path) -> None:
    train, validation = sentiment
    data = Sentences(train=train, validation=validation, text="sentence")
    metrics = finetune(experiment(SequenceClassification(), data), xlnet_run, tmp_path / "run")
    assert metrics["eval/accuracy"] > 0.9
    assert evaluate(tmp_path / "run") == pytest.approx(metrics, abs=1e-5)


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Experiment:
    data = Questions(stride=8, question_length=8, **files_of("questions", tmp_path_factory.mktemp("questions")))
    return experiment(AnswerSearch(), data, epochs=20.0)


@pytest.mark.nightly
def test_answers_are_found_and_refused(questions: Experiment, xlnet_run: Path, tmp_path: Path) -> None:
    """Every fourth question has no answer, which the best threshold tells."""
    run, workdir = questions, tmp_path / "run"
    metrics = finetune(run, xlnet_run, workdir)
    assert metrics["eval/has_answer_f1"] > 50 and metrics["eval/best_f1"] > 85
    assert {"eval/task_loss", "eval/impossible_loss", "eval/joint_loss"} <= metrics.keys()
    joint = metrics["eval/task_loss"] + 0.5 * metrics["eval/impossible_loss"]
    assert metrics["eval/joint_loss"] == pytest.approx(joint)
    examples = run.data.read("validation")
    odds = json.loads((workdir / "null_odds.json").read_text())
    impossible = np.array([not gold for gold in examples.answers])
    found = np.array([odds[name] for name in examples.ids])
    assert found[impossible].mean() > found[~impossible].mean() + 1


def encoded_rows(run: Experiment, xlnet_run: Path, examples: Any) -> dict[str, np.ndarray]:
    tokenizer = tokenizers.load(xlnet_run / "tokenizer")
    model = checkpoints.describe(checkpoints.find(xlnet_run)).experiment.model
    rows = task_inputs.rows(dataclasses.replace(run, model=model), examples, tokenizer)
    return rows.batch(rows.in_order, np.arange(len(rows)))


def test_rows_of_questions_are_those_of_the_release(questions: Experiment, xlnet_run: Path) -> None:
    """Padding, text, [SEP], question, [SEP], [CLS]; an answer is in the text, or at [CLS]."""
    run = questions
    examples = run.data.read("validation")
    batch = encoded_rows(run, xlnet_run, examples)
    marks = tokenizers.load(xlnet_run / "tokenizer").vocabulary
    assert batch["sequence_starts"].max() > 0
    for row in range(len(examples)):
        ids, begin = batch["input_ids"][row], int(batch["sequence_starts"][row, 0])
        assert (ids[:begin] == marks.pad).all() and not batch["segment_ids"][row, :begin].any()
        first, second = np.flatnonzero(ids == marks.sep)
        assert second == len(ids) - 2 and ids[-1] == marks.cls == ids[batch["cls_positions"][row, 0]]
        assert batch["token_type_ids"][row, begin:].tolist() == (
            [0] * (first + 1 - begin) + [1] * (second - first) + [2]
        )
        assert np.flatnonzero(batch["answer_mask"][row]).tolist() == [*range(begin, first), len(ids) - 1]
        places = [begin + int(batch[name][row, 0]) for name in ("starts", "ends")]
        assert places == [len(ids) - 1] * 2 or begin <= places[0] <= places[1] < first


def test_a_search_for_answers_reads_one_example_in_a_row(questions, xlnet_run, tmp_path, fails) -> None:
    data = questions.data
    files = "--data.train", data.train, "--data.validation", data.validation, "--data.pack", 2
    options = "--from", xlnet_run, "--workdir", tmp_path / "run", *files
    said = fails("finetune", "experiments/finetune_xlnet.py:squad_v2", *options)
    assert "--data.pack 1 for AnswerSearch, which reads one example in a row, found 2" in said
