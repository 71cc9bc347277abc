"""The batches of a run on text, for a training loop of one's own."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.runs import checks, text
from plmjax.runs.init_from import RANDOM
from plmjax.runs.resolve import resolve
from plmjax.training import feed
from plmjax.training.feed import HostBatch


def batches(
    experiment: Experiment,
    workdir: str | Path,
    init_from: str | Path = RANDOM,
    *,
    first_step: int = 0,
    report: Callable[[str], None] = print,
) -> Iterator[HostBatch]:
    """Yield the global batch of every step of a run on text, from `first_step` to its last step.

    They are the batches that `pretrain` reads, before the objective corrupts them: a dict of numpy arrays such as
    `input_ids` int32 [B T]. The same seed and step give the same batch. The tokenizer and the dataset are made in
    `workdir`, or taken from there.

    Raises:
        UserError: an error of `pretrain` before its first step.
    """
    checks.kind(experiment, text=True)
    run = resolve(experiment, init_from, report=report)
    with hosts.hold_folder(directory := storage.path(workdir), run.experiment.hosts):
        checks.text(run.experiment, has_tokenizer=run.init_from.description is not None)
        source = text.inputs(run, directory, report).source
    return _batches(run.experiment, source, first_step)


def _batches(experiment: Experiment, source: feed.BatchSource, first_step: int) -> Iterator[HostBatch]:
    for phase in experiment.resolved_phases:
        start = max(first_step, phase.first_step)
        if start < phase.last_step:
            rows = feed.source_in_phase(source, phase).train(
                phase, start - phase.first_step, np.arange(phase.batch_size)
            )
            yield from itertools.islice(rows, phase.last_step - start)
