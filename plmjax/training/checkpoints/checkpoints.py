"""Checkpoints: saved while the run continues, self-describing, verified before they are read.

WORKDIR/checkpoints/STEP/ is an Orbax checkpoint of four items: `params`, `training` (optimizer state, step, carry, key,
collections), `description` (the experiment, the metrics) and `tokenizer` (its files). WORKDIR/constants/ has the arrays
that no step changes, written once a run. Orbax writes a checkpoint under a temporary name and renames it when it is
complete (in a bucket it adds a last object), so an interrupted save is never read as a checkpoint. Just before
this last step, `manifest.json` is written with the size and digest of each file of the items. No item is read before
its files agree with the manifest.
"""

import base64
import dataclasses
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from plmjax import experiment, libraries, platform
from plmjax.errors import Explained, UserError, nearest
from plmjax.experiment import Experiment
from plmjax.files import json_text, locks, patience, storage
from plmjax.files.json_text import COUNT
from plmjax.objectives.objective import LossInputs
from plmjax.training import optimizers
from plmjax.training.checkpoints import ancestry, items, stored
from plmjax.training.checkpoints.ancestry import Ancestor
from plmjax.training.checkpoints.best import Best
from plmjax.training.checkpoints.manager import Manager, Retention, explain_failures
from plmjax.training.state import TrainState

FORMAT = 2
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Description:
    """The contents of a checkpoint besides its arrays.

    run: the experiment of the run.
    step: number of finished optimizer steps.
    dataset: fingerprint of the prepared dataset, or the empty string without a dataset.
    metrics: evaluation metrics at this step; empty if there was no evaluation.
    tokenizer: file name -> contents.
    window: sums over the steps since the last logged line, for the next one: name -> (sum, number of steps).
    record: (best score of the run so far, number of evaluations since then), see `Best`.
    """

    run: Experiment
    step: int
    tokenizer: dict[str, bytes]
    dataset: str = ""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    window: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    record: tuple[float, int] | None = None
    cores: int = 0
    """Processor cores of the process that saved the checkpoint, if it computed on a CPU; otherwise 0."""

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The experiment with the changes of the checkpoint's phase. A resume of the run needs `run` instead."""
        return experiment.after_step(self.run, self.step)

    def write_tokenizer(self, directory: Path) -> Path:
        """Write the tokenizer's files to a folder, and return the folder."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, contents in self.tokenizer.items():
            (directory / name).write_bytes(contents)
        return directory

    def load_tokenizer(self) -> Any:
        """Return the tokenizer, a plmjax.data.tokenizers.Tokenizer."""
        from plmjax.data import tokenizers  # here, so that training imports without a tokenizer library

        with tempfile.TemporaryDirectory() as folder:
            return tokenizers.load(self.write_tokenizer(Path(folder)))


_DESCRIPTION = {
    "experiment": {str: object},
    "step": COUNT,
    "dataset": str,
    "metrics": {str: float},
    "window": {str: [float]},
    "record": ([float], type(None)),
    "cores": COUNT,
}
"""Shape of the item `description`, in the form that `json_text.check` takes."""
UNFINISHED = "unfinished"
"""File that a run directory has while `save_parameters` writes it. If it is left behind, the next call starts anew."""
CONSTANTS = "constants"
"""Folder of a run directory for arrays that no step changes."""
ARRAYS = "arrays"


def _training(state: TrainState) -> dict[str, Any]:
    """Return the state that a resume needs besides the model.

    If the optimizer averages parameters, this includes the parameters of the last step.
    """
    names = ("step", "optimizer_state", "carry", "key", "collections")
    if optimizers.has_average(state.optimizer_state):
        names = (*names, "params")
    return {name: getattr(state, name) for name in names}


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, settings: experiment.Checkpoint) -> None:
        self.directory = storage.absolute(storage.path(directory))
        _check_links(self.directory)
        policy = Retention(settings.every, settings.keep, Best(settings.best))
        self._manager = Manager(self.directory, policy, ("params", "training", "description", "tokenizer"))

    @property
    def finished(self) -> int | None:
        """Return the step of the newest checkpoint known to be finished, or None, without access to the storage."""
        return self._manager.finished

    def latest(self) -> int | None:
        """Return the step of the last finished checkpoint, or None without one."""
        return max(storage.finished_steps(self.directory), default=None)

    def save(self, state: TrainState, description: Description, before: Callable[[], None] = lambda: None) -> None:
        """Start to save the arrays; the files are written while the run continues.

        A failed save is a warning, here or at the next call: the run continues, and its next save is tried as usual.
        The next step may donate the arrays: before this function returns, Orbax has copied them to the host. On a CPU
        it has views of the same memory, which JAX does not overwrite as long as a view exists; the step then allocates
        new memory.

        Args:
            before: work of this host that a checkpoint needs. If it fails on any host, no host starts to save.

        Raises:
            Explained: the save of a run on several hosts cannot start. Some hosts may wait for others, and only a
                restart of all hosts helps.
        """
        self._succeeds(self.wait)
        self._begin(state, description, before)

    def save_last(self, state: TrainState, description: Description, before: Callable[[], None] = lambda: None) -> None:
        """Save the last checkpoint of a run as `save` does, and wait for it. Temporary failures are retried forever.

        Raises:
            UserError: it cannot be written (a full disk).
            Explained: the save of a run on several hosts cannot start.
        """
        self._succeeds(self.wait)
        for pause in patience.waits():
            if self._begin(state, description, before, last=True) and self._succeeds(self.wait, last=True):
                return
            patience.sleep(pause)

    def _begin(
        self, state: TrainState, description: Description, before: Callable[[], None], last: bool = False
    ) -> bool:
        """Start to save. Return whether that succeeded; see `save`."""
        if not self._succeeds(lambda: self._manager.on_all_hosts(before), last):
            return False
        if jax.process_count() > 1:
            self._start(state, description)
            return True
        return self._succeeds(lambda: self._start(state, description), last)

    def _succeeds(self, work: Callable[[], None], last: bool = False) -> bool:
        """Call `work`, a part of a save, and return whether it succeeded.

        A failure is a warning. If this is the last checkpoint, an error that the user must correct is raised.
        """
        try:
            work()
        except Explained as error:
            if last and isinstance(error, UserError):
                raise
            _log.warning("warning    no checkpoint was saved, and it will be tried again: %s", error)
            return False
        return True

    def _start(self, state: TrainState, description: Description) -> None:
        step = description.step
        arrays = {
            "params": optimizers.evaluation_params(state.optimizer_state, state.params),
            "training": _training(state),
        }
        text = {
            "format": FORMAT,
            "version": libraries.VERSION,
            "experiment": experiment.to_record(description.run),
            "step": step,
            "dataset": description.dataset,
            "metrics": description.metrics,
            "window": dict(description.window),  # A copy: the run changes its own window while this one is written.
            "record": description.record,
            "cores": platform.cores() if jax.default_backend() == "cpu" else 0,
        }
        files = {name: base64.b64encode(contents).decode() for name, contents in description.tokenizer.items()}
        self._manager.start(
            step,
            ocp.args.Composite(
                params=ocp.args.StandardSave(arrays["params"]),
                training=ocp.args.StandardSave(arrays["training"]),
                description=ocp.args.JsonSave(text),
                tokenizer=ocp.args.JsonSave(files),
            ),
            description.metrics or None,
        )

    def wait(self) -> None:
        """Wait until every save is finished, on all hosts.

        Raises:
            Explained: a save failed, on this host or on another one.
        """
        self._manager.wait()

    def close(self) -> None:
        """Wait for a save that is in progress, and close the folder.

        Raises:
            Explained: the save failed.
        """
        self._manager.close()

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, Description]:
        """Return the state and the description of a step of this run, as `restore` does."""
        return restore(self.directory / str(step), abstract)

    def save_constants(self, state: TrainState) -> None:
        """Write the constants of a new run beside its checkpoints, if there are any.

        Raises:
            UserError: they cannot be written.
        """
        if not jax.tree.leaves(state.constants):
            return
        folder = self.directory.parent / CONSTANTS
        if jax.process_index() == 0:
            storage.remove(folder)  # A start that ended before its first checkpoint left it.
        with explain_failures(self.directory):
            with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as writer:
                writer.save(folder / ARRAYS, args=ocp.args.StandardSave(state.constants), force=True)
            if jax.process_index() == 0:
                items.write_manifest(folder)


def _check_links(directory: Path) -> None:
    """Raise UserError for a checkpoint that is a symbolic link: the run could not remove it later."""
    entries = directory.iterdir() if not storage.in_bucket(directory) and directory.is_dir() else ()
    for entry in sorted(entries):
        if entry.name.isdigit() and entry.is_symlink():
            raise UserError(
                f"Expected the folder of a checkpoint, found the link {entry} to {entry.resolve()}; put the folder "
                f"itself there, or start another run with it (--from)."
            )


def _advice(path: Path) -> str:
    """Return advice for a path without a checkpoint: take the run with the nearest name, or make one."""
    if path.exists():
        return "pretrain or import one first."
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    hint = nearest(str(path), [str(run) for run in beside if (run / "checkpoints").is_dir()])
    if hint.startswith("did"):
        return hint
    return "pretrain one, or make one of a model's folder by plmjax import FOLDER RUN; nothing is downloaded."


def find(path: str | Path) -> Path:
    """Return the checkpoint folder for a path: a run directory, its checkpoints folder or one checkpoint.

    For a run directory it is the last checkpoint, or the best if `checkpoint.prefer` is best and there is one.

    Raises:
        UserError: there is no finished checkpoint.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"Expected the path of a run or a checkpoint, found a {type(path).__name__}; give its path.")
    path = storage.path(path)
    own = path / "checkpoints"
    if path.name.isdigit() and storage.is_finished(path) and not own.is_dir():  # A run may have a number as its name.
        return storage.absolute(path)
    folder = own if own.is_dir() else path
    steps = storage.finished_steps(folder)
    if not steps:
        if (path / "config.json").is_file():
            raise UserError(
                f"Expected a run directory or a checkpoint at {path}, found a folder of another library; make a run of "
                f"it by plmjax import {path} RUN."
            )
        raise UserError(
            f"Expected a run directory or a checkpoint at {path}, found no finished checkpoint; {_advice(path)}"
        )
    chosen = max(steps)
    if (folder.parent / "experiment.json").exists():
        settings = experiment.read(folder.parent / "experiment.json").checkpoint
        if settings.prefer == "best":
            best = Best(settings.best).step({step: describe(folder / str(step)).metrics for step in steps})
            chosen = chosen if best is None else best
    return storage.absolute(folder) / str(chosen)


def describe(directory: Path) -> Description:
    """Return the description of a checkpoint folder.

    Raises:
        UserError: it is damaged, has a format that this version does not read, or names a file outside of its
            tokenizer.
    """
    items.verify(directory, ("description", "tokenizer"))
    with items.explain_checkpoint_errors(directory):
        text = items.read(directory, "description", ocp.args.JsonRestore())
        files = items.read(directory, "tokenizer", ocp.args.JsonRestore())
        if text.get("format") != FORMAT:
            raise UserError(
                f"Expected a checkpoint of format {FORMAT} in {directory}, found {text.get('format')}; read it with "
                f"plmjax {text.get('version', 'of an older version')}."
            )
        json_text.check(text, _DESCRIPTION)
        json_text.check(files, {str: str}, "tokenizer")
        return Description(
            run=experiment.from_record(text["experiment"], directory),
            step=text["step"],
            dataset=text["dataset"],
            metrics=text["metrics"],
            window={name: (total, steps) for name, (total, steps) in text["window"].items()},
            record=tuple(text["record"]) if text["record"] else None,
            cores=text["cores"],
            tokenizer={
                storage.plain_name(name, directory / "tokenizer"): base64.b64decode(contents)
                for name, contents in files.items()
            },
        )


def restore(directory: Path, abstract: TrainState) -> tuple[TrainState, Description]:
    """Return the state of a checkpoint folder with the shardings of `abstract`; the saved mesh may be another one.

    Raises:
        UserError: the checkpoint is damaged, or is of another model.
    """
    description = describe(directory)
    params = items.restore(directory, "params", abstract.params)
    training = {"params": params} | items.restore(directory, "training", _training(abstract))
    return TrainState(constants=load_constants(directory, abstract.constants), **training), description


def load_parameters(path: str | Path, abstract: Any = None, *, with_derived: bool = True) -> tuple[Any, Description]:
    """Return (parameters, description) of the checkpoint that a path names.

    To resume a run, use `Checkpoints.restore`.

    abstract: tree of ShapeDtypeStructs with the shardings of the parameters; None returns numpy arrays.
    with_derived: without `abstract`, add the parameters that follow from others (`System.derived`). False is for a
        checkpoint that is written again.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it has other parameters than `abstract`.
    """
    directory = find(path)
    description = describe(directory)
    params = items.restore(directory, "params", abstract)
    if abstract is None and with_derived:
        flat = flax.traverse_util.flatten_dict(params, sep="/")
        derived = description.experiment.model.system.derived(flat)
        params = flax.traverse_util.unflatten_dict(flat | derived, sep="/") if derived else params
    return params, description


def load_loss_inputs(directory: Path, abstract: TrainState) -> LossInputs:
    """Return the parameters, constants and collections of a checkpoint folder, with shardings of `abstract`.

    Raises:
        UserError: it is damaged, or is of another model.
    """
    params = items.restore(directory, "params", abstract.params)
    constants = load_constants(directory, abstract.constants)
    collections = abstract.collections
    if jax.tree.leaves(collections):
        collections = items.restore_part(directory, "training", {"collections": collections})["collections"]
    return LossInputs(params, constants, collections, step=jnp.asarray(int(directory.name), jnp.int32))


def load_constants(directory: Path, abstract: Any) -> Any:
    """Return the constants of the run that a checkpoint folder belongs to, with the shardings of `abstract`.

    Raises:
        UserError: the constants are missing, damaged, or of another model.
    """
    if not jax.tree.leaves(abstract):
        return abstract
    folder = directory.parent.parent / CONSTANTS
    if not (folder / items.MANIFEST).exists():
        raise UserError(
            f"Expected the constants of the run in {folder}, found none; keep that folder beside the checkpoints."
        )
    return items.restore(folder, ARRAYS, abstract)


def read_constants(directory: Path) -> Any:
    """Return the constants of a run directory as numpy arrays; an empty tuple if there are none.

    Raises:
        UserError: they are damaged.
    """
    folder = storage.absolute(storage.path(directory)) / CONSTANTS  # Orbax finds nothing in a relative folder
    return items.restore(folder, ARRAYS, None) if (folder / items.MANIFEST).exists() else ()


def load_collections(directory: Path) -> Any:
    """Return the collections of a checkpoint's variables other than the parameters, as numpy arrays.

    An example is the running statistics of a normalization. Most models have none.
    """
    return items.restore_branch(directory, "training", "collections")


def save_parameters(
    directory: Path,
    params: Any,
    run: Experiment,
    tokenizer: dict[str, bytes],
    *,
    collections: Any = None,
    constants: Any = (),
    ancestors: Sequence[Ancestor] = (),
) -> None:
    """Write parameters as step 0 of a new run directory, with its experiment.json.

    Nothing is written if the folder already has exactly this run: an earlier command may have been killed at its end.

    collections: other collections of the module's variables, name -> tree. constants: constants of the objective.
    ancestors: the record of the compressions that made the parameters.

    Raises:
        UserError: the folder has another run, is a symbolic link, or is in use by another process.
    """
    directory = storage.path(directory)
    if not storage.in_bucket(directory) and directory.is_symlink():
        raise UserError(
            f"Expected a new folder to write, found the link {directory} to {directory.resolve()}; name that folder "
            f"itself or another one."
        )
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=jax.tree.map(jnp.asarray, params),
        optimizer_state=(),
        carry=(),
        key=jax.random.key_data(jax.random.key(run.training.seed)),
        collections=jax.tree.map(jnp.asarray, collections or {}),
        constants=jax.tree.map(jnp.asarray, constants),
    )
    description = Description(run, 0, tokenizer)
    with locks.hold(directory):
        unfinished = directory / UNFINISHED
        if unfinished.exists():  # A process was killed while it wrote the files of a run.
            for name in (*_OF_A_RUN, CONSTANTS, ancestry.RECORD):
                storage.remove(directory / name)
        elif any((directory / name).exists() for name in _OF_A_RUN):
            if not _has(directory, state, description, ancestors):
                raise UserError(f"Expected no run in {directory}, found one; name another folder.")
            if ancestors:  # An older version could be killed before it wrote them.
                ancestry.write(directory, ancestors)
            return
        directory.mkdir(parents=True, exist_ok=True)
        storage.write(unfinished, "")
        writer = Checkpoints(directory / "checkpoints", run.checkpoint)
        writer.save_constants(state)
        writer.save_last(state, description)
        writer.close()
        experiment.write(run, directory / "experiment.json")
        description.write_tokenizer(directory / "tokenizer")
        if ancestors:
            ancestry.write(directory, ancestors)
        storage.remove(unfinished)


_OF_A_RUN = ("experiment.json", "checkpoints", "tokenizer")
"""Names of the files and folders that every run directory has."""


def _has(directory: Path, state: TrainState, description: Description, ancestors: Sequence[Ancestor]) -> bool:
    """Return whether a folder has exactly this run: its only checkpoint, constants and record are bitwise equal."""
    folder = storage.absolute(directory) / "checkpoints"
    if not all((directory / name).exists() for name in _OF_A_RUN) or storage.finished_steps(folder) != [0]:
        return False
    try:
        own, params = describe(folder / "0"), items.restore(folder / "0", "params", None)
        collections, constants = load_collections(folder / "0"), read_constants(directory)
        record = ancestry.read(directory)
    except UserError:  # It is damaged, or of an older version.
        return False
    same = own.tokenizer == description.tokenizer and not experiment.differences(own.experiment, description.experiment)
    expected = jax.tree.map(np.asarray, state.params)
    expected = stored.decode(expected) if stored.paths(expected) else expected
    pairs = ((params, expected), (collections, state.collections), (constants, state.constants))
    return same and (not record or ancestry.same(record, ancestors)) and all(_same_bits(*pair) for pair in pairs)


def _same_bits(*trees: Any) -> bool:
    found, expected = ([np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in trees)
    return len(found) == len(expected) and all(
        (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        for one, other in zip(found, expected, strict=True)
    )


def tokenizer_files(directory: Path) -> dict[str, bytes]:
    """Return a dict from name to contents of the files of a tokenizer folder."""
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}
