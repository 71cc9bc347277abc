"""A small fine-tuned run for the tests of compression."""

from pathlib import Path

import pytest

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.runs.finetuning import finetune
from plmjax.training.optimizers import BertAdamW
from tests.finetuning.conftest import sentiment
from tests.once import copied, made_once

__all__ = ["sentiment"]


@pytest.fixture(scope="session")
def task_run(sentiment: tuple[str, str], small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of `small_run` fine-tuned for 20 steps."""

    def make(folder: Path) -> None:
        data = Sentences(*sentiment, text="sentence", sequence_length=24)
        run = Experiment(
            model=None, objective=SequenceClassification(), data=data, optimizer=BertAdamW(learning_rate=3e-3),
            training=Training(steps=20, batch_size=16, log_every=10), finetuning=Finetuning(warmup=0.1),
            checkpoint=Checkpoint(every=0),
        )  # fmt: skip
        finetune(run, small_run, folder / "run")

    return copied(tmp_path_factory, made_once(tmp_path_factory, "task_run", make)) / "run"
