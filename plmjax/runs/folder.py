"""The records in a run directory, and the rules for resuming a run.

experiment.json    the completed experiment; after the first checkpoint only a few options may change
start.json         the value of --from or --continue_from, and the digest of the initial parameters
mixture.json       the history of a mixture of datasets, see `mixtures`
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plmjax import experiment as experiments
from plmjax.data import store
from plmjax.errors import UserError, listed
from plmjax.experiment import Experiment
from plmjax.files import json_text, storage
from plmjax.parallel import hosts
from plmjax.runs import mixtures
from plmjax.runs.init_from import RANDOM
from plmjax.training.checkpoints.checkpoints import UNFINISHED

EXPERIMENT = "experiment.json"
START = "start.json"
START_SHAPE = {"from": str, "sha256": str}
"""Shape of the object in `START`, as for `plmjax.files.json_text.check`."""


def record_start(workdir: Path, name: str | Path, arrays: Any, option: str = "--from") -> bool:
    """Write WORKDIR/start.json, which identifies the initial parameters of a run, or compare them with the file.

    name: the value of `option`.
    arrays: the initial parameters, a tree of host arrays; None for "random".
    option: the option that names the start.

    Returns:
        true if the file identified other parameters. It is then replaced, because no step was trained from them.

    Raises:
        UserError: the run in WORKDIR started from other parameters.
    """
    digest = hashlib.sha256()
    for array in jax.tree.leaves(arrays):
        digest.update(np.ascontiguousarray(array).tobytes())
    start = {"from": str(name), "sha256": digest.hexdigest(), "option": option}
    path = workdir / START
    before = None
    if path.exists():
        what = "the origin and digest of the run's first parameters"
        advice = "restore the file, or name another --workdir"
        before = json_text.read_object(path, what, advice, START_SHAPE)
        if before["sha256"] == start["sha256"]:
            return False
    if before is not None and storage.finished_steps(workdir / "checkpoints"):
        found = "others" if before["from"] == start["from"] else _describe_origin(start["from"])
        raise UserError(
            f"Expected {_describe_origin(before['from'])}, from which the run in {workdir} started, found {found}; "
            f"take the same ({before.get('option', '--from')} {listed([before['from']])}) or name another --workdir."
        )
    if hosts.is_primary():
        workdir.mkdir(parents=True, exist_ok=True)
        storage.write(path, json.dumps(start, indent=2) + "\n")
    return before is not None


def _describe_origin(origin: str) -> str:
    return "random parameters" if origin == RANDOM else f"the parameters of {listed([origin])}"


def record_experiment(workdir: Path, experiment: Experiment, report: Callable[[str], None] = print) -> None:
    """Write WORKDIR/experiment.json, or compare the experiment with the file.

    Before the first checkpoint, every option may change, so that a failed command can be corrected. Afterwards only the
    options of `plmjax.experiment.FREE` may change, and `training.steps` or the epochs of a fine-tuning may be raised.
    In that case `report` is called with a line.

    On several hosts only host 0 writes the file. The other hosts must be able to read it.

    Raises:
        UserError: the experiment differs from that of the run in the folder; the message names the first difference.
    """
    if (workdir / UNFINISHED).exists():
        raise UserError(
            f"Expected a run or a new folder in {workdir}, found what an import or an average left when it was killed; "
            f"run that command again, or name another --workdir."
        )
    path = workdir / EXPERIMENT
    if not hosts.is_primary() and not path.exists():
        raise UserError(
            f"This host does not see in {workdir} what host 0 writes there; name a --workdir that all hosts share, "
            f"such as a bucket."
        )
    if path.exists():
        known = experiments.read(path)
        trained = storage.finished_steps(workdir / "checkpoints")
        changed = experiments.differences(known, experiment, experiments.FREE) if trained else {}
        longer = bool(trained) and experiment.training.steps > known.training.steps
        if longer:
            changed = {name: values for name, values in changed.items() if name not in _lengths(experiment)}
        if changed and max(trained) == 0 and not (workdir / START).exists():
            raise UserError(
                f"Expected a new folder or a run of this experiment in {workdir}, found a model that was imported, "
                f"averaged or compressed; name another --workdir."
            )
        kinds = [type(each.model).__name__ for each in (known, experiment)]
        if changed and kinds[0] != kinds[1]:
            raise UserError(
                f"Expected a run of a {kinds[1]} in {workdir}, found one of a {kinds[0]}; name another --workdir."
            )
        for name, (before, after) in changed.items():
            raise UserError(
                f"Expected {name} = {before}, found {after} for the run in {workdir}; resume it unchanged or name "
                f"another --workdir."
            )
        if longer:
            sentence = extension_line(known, experiment, max(trained), workdir)
            if hosts.is_primary():
                report(sentence)
    if hosts.is_primary():
        workdir.mkdir(parents=True, exist_ok=True)
        experiments.write(experiment, path)


def _lengths(experiment: Experiment) -> set[str]:
    """Return the fields that change when a run gets longer: its length, and a warm-up that is a fraction of it."""
    fields = {"training.steps", "finetuning.epochs"}
    if experiment.finetuning is not None and experiment.finetuning.warmup:
        fields.add("optimizer.schedule.warmup_steps")
    return fields


def extension_line(before: Experiment, after: Experiment, done: int, workdir: Path) -> str:
    """Return a line about a run that is resumed with more steps.

    Phases are fractions of all steps, so more steps move the borders between phases. A finished step must stay in its
    phase.

    before, after: experiments that differ only in length; `after` has more steps.
    done: number of finished steps.

    Raises:
        UserError: a finished step would belong to another phase.
    """
    borders = [[phase.last_step for phase in each.resolved_phases[:-1]] for each in (before, after)]
    for index, (old, new) in enumerate(zip(*borders, strict=True)):
        if min(old, done) != min(new, done):
            raise UserError(
                f"Expected the {done} steps that {workdir} has done to stay in their phases, found that phase {index} "
                f"would end at step {new}, not {old}, with --training.steps {after.training.steps}; begin a new run "
                f"with --from {workdir} and another --workdir."
            )
    was, becomes = (
        float(each.optimizer.schedule.rates(each.optimizer.learning_rate, each.training.steps)(done))
        for each in (before, after)
    )
    rate = f"stays at {was:.2e}" if was == becomes else f"goes from {was:.2e} to {becomes:.2e}"
    return (
        f"steps    {before.training.steps} become {after.training.steps}: after step {done} the learning rate "
        f"({after.optimizer.schedule.name}) {rate}"
    )


@contextlib.contextmanager
def forget_after_mistakes(workdir: Path) -> Iterator[None]:
    """Remove the records in WORKDIR if its first command raises UserError, so that the next one can name other text.

    Once the dataset is finished, all records are kept.
    """
    first = not (workdir / EXPERIMENT).exists()
    try:
        yield
    except UserError:
        if first and not (workdir / "dataset" / store.MANIFEST).exists():
            for name in (EXPERIMENT, START, mixtures.RECORD, "tokenizer"):
                storage.remove(workdir / name)
        raise
