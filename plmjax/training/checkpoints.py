"""Checkpoints: saved without stopping the run, self-describing, verified when read.

WORKDIR/checkpoints/STEP/ is an Orbax checkpoint of four items: `params`, `training` (optimizer state, step, carry,
key), `description` (the experiment, the metrics) and `tokenizer` (its files). Orbax writes it under a temporary name
and renames it when it is whole (in a bucket it adds a last object), so an interrupted save is never taken for a
checkpoint. Just before that `manifest.json` is added, size and digest of every file of an item; nothing is read before
these agree.
"""

import base64
import dataclasses
import functools
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from plmjax import __version__, experiment, storage
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.training.state import State

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Description:
    """What a checkpoint says of itself besides its arrays.

    experiment: the run it belongs to.
    step: optimizer steps done.
    dataset: fingerprint of the prepared dataset, empty where there is none.
    metrics: evaluation metrics at this step, empty where none were taken.
    tokenizer: file name -> contents.
    window: what the next logged line averages, of the steps since the last one: name -> (sum, steps).
    record: best score of the run so far, as `score` counts, and how many evaluations have come after it.
    """

    experiment: Experiment
    step: int
    tokenizer: dict[str, bytes]
    dataset: str = ""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    window: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    record: tuple[float, int] | None = None

    def write_tokenizer(self, directory: Path) -> Path:
        """Writes the tokenizer's files to a folder and returns it."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, contents in self.tokenizer.items():
            (directory / name).write_bytes(contents)
        return directory


MANIFEST = "manifest.json"


def write_manifest(directory: Path) -> None:
    """Notes size and digest of every file in the folders of a checkpoint that is about to be finished."""
    files = {name: file for name, file in storage.files(directory).items() if "/" in name}
    entries = {name: [file.size, file.digest()] for name, file in files.items()}
    storage.write(directory / MANIFEST, json.dumps(entries, indent=1) + "\n")


def verify(directory: Path, items: Sequence[str]) -> None:
    """Compares the files of a checkpoint's items with its manifest.

    Raises:
        UserError: a file is missing or is not what was written.
    """
    with _damage_named(directory):
        entries = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        found = storage.files(directory)
        for item in items:
            if not any(name.startswith(f"{item}/") for name in entries):
                raise ValueError(f"it has no {item}")
        for name, (size, digest) in entries.items():
            if name.partition("/")[0] not in items:
                continue
            if name not in found:
                raise ValueError(f"{name} is missing")
            if found[name].size != size:
                raise ValueError(f"{name} has {found[name].size} bytes of {size}")
            if found[name].digest(like=digest) != digest:
                raise ValueError(f"{name} is not what was written")


def score(best: str, metrics: dict[str, float] | None) -> float | None:
    """What is smallest for the best checkpoint; `best` names a metric, larger is better after a leading -.

    None where the metric was not taken; what is no number, such as the correlation of a constant, is worst.
    """
    value = (metrics or {}).get(best.removeprefix("-"))
    if value is None or math.isnan(value):
        return None if value is None else math.inf
    return -value if best.startswith("-") else value


@dataclasses.dataclass
class Retention:
    """Which checkpoints stay: the newest, the newest `keep` of those a multiple of `every`, and the best."""

    every: int
    keep: int
    best: str

    def score(self, metrics: dict[str, float] | None) -> float | None:
        """As the function."""
        return score(self.best, metrics)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Orbax's question, for checkpoints in the order of their steps."""
        regular = [info.step for info in checkpoints if self.every and info.step % self.every == 0]
        kept = set(regular[-self.keep :] if self.keep else regular)
        kept.add(max(info.step for info in checkpoints))
        scored = [(self.score(info.metrics), info.step) for info in checkpoints if self.score(info.metrics) is not None]
        kept |= {min(scored)[1]} if scored else set()
        return [info.step in kept for info in checkpoints]


def _items(state: State) -> dict[str, Any]:
    training = {name: getattr(state, name) for name in ("step", "optimizer_state", "carry", "key")}
    return {"params": state.params, "training": training}


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, settings: experiment.Checkpoint) -> None:
        # Orbax reports every file it touches, and logs with its traceback each failure that it raises as well.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not isinstance(sys.unraisablehook, _WithoutLateWrites):
            sys.unraisablehook = _WithoutLateWrites(sys.unraisablehook)
        policy = Retention(settings.every, settings.keep, settings.best)
        self.directory = storage.absolute(storage.path(directory))
        self._saving = -1
        with _damage_named(self.directory):
            self._manager = ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=policy,
                    cleanup_tmp_directories=True,
                    # Without it Orbax keeps no metrics, and the best checkpoint would be forgotten at a resume.
                    best_fn=policy.score if settings.best else None,
                    enable_async_checkpointing=True,
                    async_options=ocp.options.AsyncOptions(post_finalization_callback=self._before_renaming),
                ),
                item_names=("params", "training", "description", "tokenizer"),
            )

    def _before_renaming(self) -> None:
        if storage.in_bucket(self.directory):  # where nothing can be renamed and a last object says that it is whole
            write_manifest(self.directory / str(self._saving))
            return
        (directory,) = self.directory.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        write_manifest(directory)

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The last finished checkpoint's step."""
        return self._manager.latest_step()

    def save(self, state: State, description: Description) -> None:
        """Begins to save; the arrays are copied before it returns, the files are written while the run goes on.

        Raises:
            UserError: this save cannot begin, or the one before it could not be finished (a full disk).
        """
        step = description.step
        if step in self._manager.all_steps():
            return
        items = _items(state)
        if jax.default_backend() == "cpu":
            # A host copy: on CPU Orbax would go on reading the buffers that the next step overwrites.
            items = jax.tree.map(_copied, items)
        text = {
            "format": FORMAT,
            "version": __version__,
            "experiment": experiment.to_dict(description.experiment),
            "step": step,
            "dataset": description.dataset,
            "metrics": description.metrics,
            "window": dict(description.window),  # the run goes on adding to its own while this one is written
            "record": description.record,
        }
        files = {name: base64.b64encode(contents).decode() for name, contents in description.tokenizer.items()}
        try:
            self._manager.wait_until_finished()
            self._saving = step
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(items["params"]),
                    training=ocp.args.StandardSave(items["training"]),
                    description=ocp.args.JsonSave(text),
                    tokenizer=ocp.args.JsonSave(files),
                ),
                metrics=description.metrics or None,
            )
        except Exception as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Returns when every save is finished.

        Raises:
            UserError: a save could not be finished.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Waits for what is under way and lets go of the folder."""
        self.wait()
        self._manager.close()

    def restore(self, step: int, abstract: State) -> tuple[State, Description]:
        """The state of a checkpoint, every array placed as `abstract` says, whatever mesh it was saved from.

        Raises:
            UserError: the checkpoint is damaged, or is of another model.
        """
        directory = self.directory / str(step)
        description = describe(directory)
        params = _restore(directory, "params", abstract.params)
        training = _restore(directory, "training", _items(abstract)["training"])
        return State(params=params, **training), description

    def _failed(self, error: Exception) -> UserError:
        try:  # Orbax's own list leaves out at once what it would remove if this save were finished
            kept = ", ".join(map(str, storage.finished_steps(self.directory))) or "none"
        except Exception:
            kept = "those that are there"
        return UserError(
            f"A checkpoint could not be written to {self.directory} ({_first_line(error)}); free some space, allow "
            f"writing there or name another --workdir, then run again to go on from a finished one (steps: {kept})."
        )


@dataclasses.dataclass(frozen=True)
class _WithoutLateWrites:
    """The hook of errors that nobody can catch, silent about writes that end after a save has failed.

    Orbax closes its event loop at the first array that cannot be written; tensorstore, still writing the others on
    threads of its own, then finds the loop closed. The failure itself is raised by `save` and `wait`.
    """

    report: Callable[[Any], None]

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self.report(unraisable)


def _copied(x: jax.Array) -> jax.Array:
    shards = [jax.device_put(np.array(shard.data), shard.device) for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, shards)


def find(path: str | Path) -> Path:
    """The checkpoint folder that a user means by a run directory, its checkpoints folder or one checkpoint.

    Of a run directory it is the last, or the best where the run's `checkpoint.prefer` says so.

    Raises:
        UserError: there is no finished checkpoint.
    """
    path = storage.path(path)
    if path.name.isdigit() and storage.is_finished(path):
        return storage.absolute(path)
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    steps = storage.finished_steps(folder)
    if not steps:
        raise UserError(
            f"Expected a run directory or a checkpoint at {path}, found no finished checkpoint; pretrain or import "
            f"one first."
        )
    chosen = max(steps)
    if (folder.parent / "experiment.json").exists():
        settings = experiment.read(folder.parent / "experiment.json").checkpoint
        if settings.prefer == "best":
            scores = {step: score(settings.best, describe(folder / str(step)).metrics) for step in steps}
            scores = {step: value for step, value in scores.items() if value is not None}
            chosen = min(scores, key=lambda step: (scores[step], step), default=chosen)
    return storage.absolute(folder) / str(chosen)


def describe(directory: Path) -> Description:
    """The description of a checkpoint folder.

    Raises:
        UserError: it is damaged, or of a format this version does not read.
    """
    verify(directory, ("description", "tokenizer"))
    with _damage_named(directory):
        text = _read(directory, "description", ocp.args.JsonRestore())
        files = _read(directory, "tokenizer", ocp.args.JsonRestore())
        if text.get("format") != FORMAT:
            raise UserError(
                f"Expected a checkpoint of format {FORMAT} in {directory}, found {text.get('format')}; read it with "
                f"plmjax {text.get('version', 'of its time')}."
            )
        return Description(
            experiment=experiment.from_dict(text["experiment"]),
            step=text["step"],
            dataset=text["dataset"],
            metrics=text["metrics"],
            window={name: (total, steps) for name, (total, steps) in text["window"].items()},
            record=tuple(text["record"]) if text.get("record") else None,
            tokenizer={name: base64.b64decode(contents) for name, contents in files.items()},
        )


def load_parameters(path: str | Path, abstract: Any = None) -> tuple[Any, Description]:
    """(parameters, description) of the checkpoint a path means, for everything that is not a resume.

    abstract: tree of ShapeDtypeStructs with shardings to place the parameters by; None gives numpy arrays.

    Raises:
        UserError: there is none, it is damaged, or it has other parameters than `abstract`.
    """
    directory = find(path)
    description = describe(directory)
    return _restore(directory, "params", abstract), description


def save_parameters(directory: Path, params: Any, run: Experiment, tokenizer: dict[str, bytes]) -> None:
    """Writes parameters that were not trained here as step 0 of a run directory, with its experiment.json.

    Raises:
        UserError: the folder holds a run already.
    """
    directory = storage.path(directory)
    if (directory / "experiment.json").exists() or (directory / "checkpoints").exists():
        raise UserError(f"Expected no run in {directory}, found one; name another folder.")
    directory.mkdir(parents=True, exist_ok=True)
    writer = Checkpoints(directory / "checkpoints", run.checkpoint)
    params = jax.tree.map(jnp.asarray, params)
    state = State(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer_state=(),
        carry=(),
        key=jax.random.key_data(jax.random.key(run.training.seed)),
    )
    description = Description(run, 0, tokenizer)
    writer.save(state, description)
    writer.close()
    experiment.write(run, directory / "experiment.json")
    description.write_tokenizer(directory / "tokenizer")


def tokenizer_files(directory: Path) -> dict[str, bytes]:
    """File name -> contents of a tokenizer folder."""
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}


def _restore(directory: Path, item: str, abstract: Any) -> Any:
    verify(directory, (item,))
    with _damage_named(directory):
        if abstract is not None:
            _check_shapes(directory, item, abstract)
        arguments = ocp.args.StandardRestore(abstract)
        if abstract is None:
            arguments = ocp.args.PyTreeRestore(restore_args=_as_numpy(directory, item))
        return _read(directory, item, arguments)


def _as_numpy(directory: Path, item: str) -> Any:
    """Restores every array of an item to the host's memory, whatever devices it was saved from."""
    with _reader(ocp.PyTreeCheckpointHandler) as reader:
        tree = reader.metadata(directory / item).item_metadata.tree
    return jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)


def _check_shapes(directory: Path, item: str, abstract: Any) -> None:
    """Raises UserError that names what a checkpoint lacks, has too much of or has in another shape."""
    with _reader(ocp.StandardCheckpointHandler) as reader:
        metadata = reader.metadata(directory / item).item_metadata.tree

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {
            re.sub(r"[\[\]'.]+", "/", jax.tree_util.keystr(path)).strip("/"): tuple(leaf.shape)
            for path, leaf in leaves
            if hasattr(leaf, "shape")
        }

    found, expected = shapes(metadata), shapes(abstract)
    if len(found) == len(expected) and sorted(found.values()) == sorted(expected.values()) and item != "params":
        return
    names = [name for name in sorted(expected.keys() | found.keys()) if found.get(name) != expected.get(name)]
    if names:
        differing = ", and ".join(
            f"{item}/{name} of shape {expected.get(name, 'none at all')}, found {found.get(name, 'none at all')}"
            for name in names[:3]
        )
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        raise UserError(
            f"The checkpoint {directory} is of another model: expected {differing}{more}; use the experiment it was "
            f"made by."
        )


def _reader(handler: Callable[..., Any]) -> ocp.Checkpointer:
    """What reads an item on this host without waiting for the others, which may not be reading it."""
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"host{here}"
    )
    return ocp.Checkpointer(handler(multiprocessing_options=alone), multiprocessing_options=alone)


def _read(directory: Path, item: str, arguments: Any) -> Any:
    handlers = {
        ocp.args.JsonRestore: ocp.JsonCheckpointHandler,
        ocp.args.StandardRestore: ocp.StandardCheckpointHandler,
        ocp.args.PyTreeRestore: ocp.PyTreeCheckpointHandler,
    }
    with _reader(handlers[type(arguments)]) as reader:
        return reader.restore(directory / item, args=arguments)


class _damage_named:  # noqa: N801 - reads as a statement
    """Turns whatever goes wrong while reading a checkpoint into one sentence."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):
            in_bucket = storage.in_bucket(self.directory) and not isinstance(error, FileNotFoundError)
            if in_bucket and (sentence := storage.explain(error)):  # nothing is wrong with what lies there
                raise UserError(sentence) from error
            raise UserError(
                f"The checkpoint {self.directory} cannot be read ({_first_line(error)}); it is half-written or "
                f"damaged: remove that folder to go on from an earlier one."
            ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return functools.reduce(lambda line, mark: line.split(mark)[0], ("\n", "; "), text)[:200]
