"""Tensors of TensorFlow checkpoints under their own names. PREFIX.data-00000-of-00001 lies beside PREFIX.index."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plmjax.data import tensorflow_runtime
from plmjax.errors import UserError
from plmjax.files import json_text
from plmjax.interop.tensors import Tensors

PUBLISHED = "bert_model.ckpt"
"""The prefix of Google's BERT folders. It is chosen if a folder holds several."""


def evidence(path: Path) -> str:
    """Return the evidence for a prefix, an index or a folder; empty if the path is something else."""
    if path.is_dir():
        return ", ".join(sorted(index.name for index in path.glob("*.index"))[:1])
    index = path.with_name(f"{path.name.removesuffix('.index')}.index")
    return index.name if index.is_file() else ""


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """Open the variables of a checkpoint. The path is a prefix, an index, or a folder that holds one checkpoint.

    The optimizer's slots and the step are included. Raises UserError if there is no checkpoint or it is damaged.
    """
    yield read(path)


def read(path: Path) -> Tensors:
    """Return the same tensors as `open_tensors`. Nothing needs to be closed."""
    prefix = _only_prefix(path) if path.is_dir() else path.with_name(path.name.removesuffix(".index"))
    tf = tensorflow_runtime.tensorflow()
    try:
        reader = tf.train.load_checkpoint(str(prefix))
    except Exception as error:  # the reader raises IndexError, ValueError, RuntimeError and others
        reason = json_text.reason(error)
        raise UserError(f"Expected a TensorFlow checkpoint, found {prefix} ({reason}); fetch it again.") from error
    shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    dtypes = {name: kind.name for name, kind in reader.get_variable_to_dtype_map().items()}

    def variable(name: str) -> np.ndarray:
        try:
            return reader.get_tensor(name)
        except Exception as error:
            raise UserError(f"Expected all of {name} in {prefix}, found it damaged; fetch it again.") from error

    return Tensors(str(path), shapes, dtypes, variable)


def _only_prefix(directory: Path) -> Path:
    prefixes = sorted(path.with_suffix("") for path in directory.glob("*.index"))
    published = directory / PUBLISHED
    if published in prefixes or len(prefixes) == 1:
        return published if published in prefixes else prefixes[0]
    raise UserError(
        f"Expected one checkpoint in {directory}, {PUBLISHED}.index with its data beside it, found "
        f"{', '.join(prefix.name for prefix in prefixes) or 'none'}; leave one in the folder."
    )
