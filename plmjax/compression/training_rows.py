"""The rows that a checkpoint's run was trained on, to measure a model on them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from plmjax.compression.run import Source
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.run import rows
from plmjax.training import phases
from plmjax.training.checkpoints import start
from plmjax.vocabulary import Vocabulary

Batch = dict[str, Any]


def training_rows(source: Source, run: Experiment, batch_size: int = 1) -> tuple[Vocabulary, Iterator[Batch]]:
    """Return (vocabulary, clean batches of the run in its own order, without end).

    A row is that of the run's last phase, and may hold several packed examples.

    Raises:
        UserError: the text or the files of the run are not there.
    """
    tokenizer = start.tokenizer_of(source.description)
    phase = dataclasses.replace(phases.resolve(run)[-1], batch_size=batch_size, accumulation=1)
    if isinstance(run.data, Data):
        from plmjax.data import pipeline, store

        dataset = store.open_dataset(source.dataset(run), vocab_size=run.model.vocab_size)
        made = pipeline.DatasetSource(run.data.layout, dataset, tokenizer.vocabulary, run.training.seed)
    else:
        packed = rows(run, run.data.read("train"), tokenizer)
        made = TaskSource([packed], packed, tokenizer.vocabulary, run.training.seed)
    return tokenizer.vocabulary, made.train(phase, 0)
