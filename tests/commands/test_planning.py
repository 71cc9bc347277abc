"""The run that a plan is of: with the model of its checkpoint, and the rows of its examples."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands.planning import planned_run
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Finetuning, Training, load
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.planning import plan as plans
from plmjax.runs.resolve import resolve
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import AdamW


@pytest.fixture
def sentences(tmp_path: Path) -> Experiment:
    """A fine-tuning on 45 sentences with three labels, 8 a step, for two epochs."""
    for name, rows in (("train", 45), ("validation", 3)):
        lines = [f"{('bad', 'fair', 'good')[row % 3]}\tthe film {row}" for row in range(rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n", encoding="utf-8")
    return Experiment(
        model=None, objective=SequenceClassification(),
        data=Sentences(*(str(tmp_path / f"{name}.tsv") for name in ("train", "validation")), sequence_length=24),
        optimizer=AdamW(), training=Training(steps=0, batch_size=8), finetuning=Finetuning(epochs=2.0, warmup=0.5),
    )  # fmt: skip


def test_a_task_has_the_model_the_labels_and_the_steps_of_its_run(
    sentences: Experiment, small_run: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    run, batches = planned_run(resolve(sentences, small_run))
    assert sorted(tmp_path.rglob("*")) == before
    assert run.model == checkpoints.describe(checkpoints.find(small_run)).experiment.model
    assert run.objective.labels == ("bad", "fair", "good")
    assert (run.training.steps, run.optimizer.schedule.warmup_steps) == (11, 6)  # 45 x 2 / 8, and half of it
    shapes = batches.shapes(run.resolved_phases[0])
    assert batches.vocabulary.size == run.model.vocab_size
    assert shapes["input_ids"] == jax.ShapeDtypeStruct((8, 24), np.int32)
    assert shapes["labels"] == jax.ShapeDtypeStruct((8, 1), np.int32)


def test_a_text_has_the_model_and_the_task_of_the_checkpoint(small_run: Path) -> None:
    trained = checkpoints.describe(checkpoints.find(small_run)).experiment
    run, batches = planned_run(resolve(load("continued"), small_run))
    assert (run.model, run.objective, run.data.layout) == (trained.model, trained.objective, trained.data.layout)
    assert batches.vocabulary.size == trained.model.vocab_size
    (phase,) = run.resolved_phases
    assert batches.shapes(phase) == run.data.layout.batch(phase.batch_size, phase.sequence_length)


def test_a_batch_of_a_task_that_the_slice_does_not_divide_is_one_sentence(
    sentences: Experiment, small_run: Path
) -> None:
    odd = dataclasses.replace(sentences, training=Training(steps=0, batch_size=6))
    run, batches = planned_run(resolve(odd, small_run))
    with pytest.raises(UserError, match=r"4 devices .* found 6"):
        plans.plan(run, "v5e:2x2", batches=batches)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [((), "finetune --like"), (("--from", "nowhere"), "nowhere"), (("--data.train", "nothing.tsv"), "nothing.tsv")],
)
def test_a_task_without_a_model_or_a_file_is_one_sentence(
    fails, small_run: Path, options: tuple[str, ...], sentence: str
) -> None:
    found = options if "--from" in options or not options else ("--from", str(small_run), *options)
    assert sentence in fails("plan", "finetune_sentences", "--topology", "v5e:2x2", *found)
