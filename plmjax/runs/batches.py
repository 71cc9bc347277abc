"""The batches of a run on text, for a custom training loop."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.runs import checks, folder, text
from plmjax.runs.init_from import RANDOM
from plmjax.runs.resolve import resolve
from plmjax.training import feed
from plmjax.training.feed import HostBatch


def batches(
    run: Experiment | str | Path,
    workdir: str | Path | None = None,
    init_from: str | Path = RANDOM,
    *,
    first_step: int = 0,
    report: Callable[[str], None] = print,
) -> Iterator[HostBatch]:
    """Yield the global batch of every step of a run on text.

    They are the batches that `pretrain` reads, before the objective corrupts them: dicts of numpy arrays such as
    `input_ids` int32 [B T]. The same seed and step give the same batch. The tokenizer and the dataset are made in
    `workdir`, or taken from there.

    Args:
        run: an experiment, with the `workdir` of its run; or a run directory, without `workdir`.
        init_from: as for `plmjax.runs.resolve.resolve`.
        report: as for `plmjax.runs.resolve.resolve`.
        first_step: number of steps to leave out.

    Raises:
        UserError: `pretrain` would raise it before the first step, or `first_step` is below 0.
    """
    if not isinstance(run, Experiment):
        workdir, run = run, experiments.read(storage.path(run) / folder.EXPERIMENT)
    if first_step < 0:
        raise UserError(f"Expected a first_step of at least 0, found {first_step}; raise it.")
    if workdir is None:
        raise UserError("Expected the folder of the run beside its experiment, found none; give the workdir.")
    checks.kind(run, text=True)
    resolved = resolve(run, init_from, report=report)
    with hosts.hold_folder(directory := storage.path(workdir), resolved.experiment.hosts):
        checks.text(resolved.experiment, has_tokenizer=resolved.init_from.description is not None)
        source = text.inputs(resolved, directory, report).source
    return _batches(resolved.experiment, source, first_step)


def _batches(experiment: Experiment, source: feed.BatchSource, first_step: int) -> Iterator[HostBatch]:
    for phase in experiment.resolved_phases:
        start = max(first_step, phase.first_step)
        if start < phase.last_step:
            rows = feed.source_in_phase(source, phase).train(
                phase, start - phase.first_step, np.arange(phase.batch_size)
            )
            yield from itertools.islice(rows, phase.last_step - start)
