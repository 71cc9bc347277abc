"""The items of a checkpoint folder: their files are compared with a manifest, and then read by Orbax.

The manifest has the size and digest of each file. It is written when a checkpoint is complete.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from plmjax.errors import Explained, UserError
from plmjax.files import json_text, seals, storage
from plmjax.training.checkpoints import stored

MANIFEST = "manifest.json"
"""File with the sizes and digests of all other files."""


def write_manifest(directory: Path) -> None:
    """Write the manifest of an unfinished checkpoint: size and digest of every file in its folders."""
    files = {name: file for name, file in storage.files(directory).items() if "/" in name}
    storage.write(directory / MANIFEST, json.dumps(seals.entries(files), indent=1) + "\n")


def verify(directory: Path, items: Sequence[str]) -> None:
    """Compare the files of a checkpoint's items with its manifest.

    Raises:
        UserError: a file is missing or differs from the manifest.
    """
    with explain_checkpoint_errors(directory):
        entries = json_text.parse((directory / MANIFEST).read_bytes())
        for item in items:
            if not any(name.startswith(f"{item}/") for name in entries):
                raise ValueError(f"it has no {item}")
        own = {name: entry for name, entry in entries.items() if name.partition("/")[0] in items}
        if found := seals.difference(own, storage.files(directory)):
            raise ValueError(found)


def restore(directory: Path, item: str, abstract: Any) -> Any:
    """Return the arrays of an item with the shardings of `abstract`, or numpy arrays if `abstract` is None.

    Arrays that are stored in int8 become float32.

    Raises:
        UserError: a file is damaged, or the item has other arrays than `abstract`.
    """
    verify(directory, (item,))
    with explain_checkpoint_errors(directory):
        found = _metadata(directory, item)
        if abstract is not None and not stored.paths(found):
            _check_shapes(directory, item, found, abstract)
            return read(directory, item, ocp.args.StandardRestore(abstract))
        arrays = read(directory, item, ocp.args.PyTreeRestore(restore_args=_as_numpy(found)))
        arrays = stored.decode(arrays) if stored.paths(found) else arrays
        if abstract is None:
            return arrays
        _check_shapes(directory, item, arrays, abstract)
        return jax.tree.map(_place, arrays, abstract)


def int8_paths(directory: Path, item: str) -> list[str]:
    """Return the paths of an item's arrays that are stored in int8, sorted.

    Raises:
        UserError: a file is damaged.
    """
    verify(directory, (item,))
    with explain_checkpoint_errors(directory):
        return stored.paths(_metadata(directory, item))


def _place(array: np.ndarray, described: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.make_array_from_callback(described.shape, described.sharding, array.__getitem__)


def restore_part(directory: Path, item: str, abstract: Any) -> Any:
    """Return the trees of an item that `abstract` has, with the shardings of `abstract`."""
    verify(directory, (item,))
    with explain_checkpoint_errors(directory):
        arguments = ocp.args.PyTreeRestore(
            abstract, restore_args=ocp.checkpoint_utils.construct_restore_args(abstract), partial_restore=True
        )
        return read(directory, item, arguments)


def restore_branch(directory: Path, item: str, name: str) -> Any:
    """Return the tree `name` of an item as numpy arrays, or an empty dict if the item lacks it."""
    verify(directory, (item,))
    with explain_checkpoint_errors(directory):
        branch = {name: _metadata(directory, item).get(name)}
        if not jax.tree.leaves(branch):
            return {}
        arguments = ocp.args.PyTreeRestore(branch, restore_args=_as_numpy(branch), partial_restore=True)
        return read(directory, item, arguments)[name]


def _metadata(directory: Path, item: str) -> Any:
    """Return Orbax's metadata of the arrays of an item, as their tree."""
    with _reader(ocp.PyTreeCheckpointHandler) as reader:
        return reader.metadata(directory / item).item_metadata.tree


def _as_numpy(tree: Any) -> Any:
    """Return restore arguments that restore every array of a tree to host memory, for any saved sharding."""
    return jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)


def _check_shapes(directory: Path, item: str, tree: Any, abstract: Any) -> None:
    """Raise UserError with the names of arrays of an item's tree that are missing, superfluous or of another shape."""

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {
            re.sub(r"[\[\]'.]+", "/", jax.tree_util.keystr(path)).strip("/"): tuple(leaf.shape)
            for path, leaf in leaves
            if hasattr(leaf, "shape")
        }

    found, expected = shapes(tree), shapes(abstract)
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
            f"Expected the model of the experiment in {directory}, found another: expected {differing}{more}; use the "
            f"experiment of the checkpoint."
        )


def _reader(handler: Callable[..., Any]) -> ocp.Checkpointer:
    """Return a reader for this host alone, which does not wait for other hosts."""
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"host{here}"
    )
    return ocp.Checkpointer(handler(multiprocessing_options=alone), multiprocessing_options=alone)


def read(directory: Path, item: str, arguments: Any) -> Any:
    """Return an item, read by Orbax with these restore arguments. Its files are not verified here."""
    handlers = {
        ocp.args.JsonRestore: ocp.JsonCheckpointHandler,
        ocp.args.StandardRestore: ocp.StandardCheckpointHandler,
        ocp.args.PyTreeRestore: ocp.PyTreeCheckpointHandler,
    }
    with _reader(handlers[type(arguments)]) as reader:
        return reader.restore(directory / item, args=arguments)


class explain_checkpoint_errors:  # noqa: N801 - reads as a statement
    """Turns an error in reading a checkpoint into an error of one sentence."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, Explained):
            in_bucket = storage.in_bucket(self.directory) and not isinstance(error, FileNotFoundError)
            if in_bucket and (explained := storage.explain(error)):  # The bucket failed; the files may be intact.
                raise explained from error
            raise UserError(
                f"Expected a whole checkpoint in {self.directory}, found that it cannot be read: {first_line(error)}; "
                f"remove that folder to continue from an earlier checkpoint."
            ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message up to "; ", at most 200 characters."""
    text = str(error).strip() or type(error).__name__
    return functools.reduce(lambda line, mark: line.split(mark)[0], ("\n", "; "), text)[:200]
