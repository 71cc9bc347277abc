"""Files of torch tensors: a state_dict as torch.save writes it (.pt, .pth, .bin). Nothing but tensors is unpickled."""

import contextlib
import importlib.util
import logging
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import json_text
from plmjax.errors import NotInstalled, UserError, listed, quoted
from plmjax.interop.tensors import Tensors

log = logging.getLogger(__name__)

NESTING = ("model", "state_dict", "model_state_dict", "module")
"""Names under which training scripts store the tensors beside their optimizer's."""

_DAMAGED = (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError, EOFError, OSError, ValueError, zlib.error)
"""Errors of zipfile on a file that is no whole archive."""
_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch before 1.6 begins a file: its magic number, pickled."""


def evidence(path: Path) -> str:
    """By what a file is recognised as one of torch; empty where it is something else."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        if file.read(len(_BEFORE_ZIP)) == _BEFORE_ZIP:
            return "torch's magic number"
    if zipfile.is_zipfile(path):
        with contextlib.suppress(*_DAMAGED), zipfile.ZipFile(path) as archive:
            if any(name.endswith("/data.pkl") for name in archive.namelist()):
                return "data.pkl in a zip archive"
    return ""


def beginning(path: Path, size: int) -> bytes:
    """The first `size` bytes of the part of a file that `evidence` has recognised in which the names of its tensors
    stand; nothing where it is damaged."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return file.read(size)
    with contextlib.suppress(*_DAMAGED), zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(pickled) as file:
            return file.read(size)
    return b""


def _check_archive(path: Path) -> None:
    """Raises UserError for an archive that torch did not write, or whose contents changed since.

    torch stores every record as it is, with its checksum. A compressed record can be a thousand times as large as the
    file, and torch never compares the checksums.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                    raise UserError(
                        f"Expected records that torch.save stored without compression in {path}, found "
                        f"{quoted(record.filename)} compressed; save the tensors again with torch.save."
                    )
            damaged = archive.testzip()
    except _DAMAGED as error:
        raise UserError(
            f"Expected a file of torch.save, found {path} damaged ({json_text.reason(error)}); fetch it again."
        ) from None
    if damaged is not None:
        raise UserError(
            f"Expected {quoted(damaged)} in {path} as torch.save wrote it, found another checksum; fetch it again."
        )


def write(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes tensors as torch.save does. Raises NotInstalled where torch is not."""
    if importlib.util.find_spec("torch") is None:
        raise NotInstalled("Expected torch to write its kind of file, found it not installed; install torch.")
    import torch

    torch.save({name: torch.tensor(tensor) for name, tensor in tensors.items()}, path)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Tensors]:
    """The tensors of a file. Raises UserError where torch is not installed or the file holds anything else."""
    yield read([path], path)


def read(files: Sequence[Path], origin: Path) -> Tensors:
    """The tensors of several files as those of one checkpoint; `origin` is its name in messages."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"Expected torch to read {files[0]}, found it not installed; install torch, or save the model as "
            "model.safetensors (save_pretrained of transformers does)."
        )
    import torch

    state = {name: tensor.detach() for file in files for name, tensor in _tensors(file).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in state.items()}

    def numbers(name: str) -> np.ndarray:
        bfloat16 = state[name].dtype == torch.bfloat16  # which torch cannot turn into an array
        return (state[name].float() if bfloat16 else state[name]).numpy()

    return Tensors(str(origin), shapes, dtypes, numbers)


def _tensors(file: Path) -> Mapping[str, Any]:
    """Name -> tensor. What is no tensor is left out and logged, as transformers does."""
    import torch

    if zipfile.is_zipfile(file):
        _check_archive(file)
    try:  # the form from before torch 1.6 is no zip archive and cannot be mapped to memory
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # pickle, zip and runtime errors alike mean that the file holds no plain tensors
        foreign = isinstance(error, pickle.UnpicklingError)
        reason = (
            "it holds other objects, or is damaged"
            if foreign
            else json_text.reason(error)
            if str(error)
            else "it is empty"
        )
        raise UserError(
            f"Expected a dictionary of tensors in {file}, found none ({reason}); fetch it again."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UserError(
            f"Expected a dictionary of tensors by their names in {file}, found a {type(state).__name__} without names; "
            "save the model's state_dict()."
        )
    tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
    for name in NESTING:
        if isinstance(state.get(name), Mapping):
            raise UserError(
                f"Expected tensors by their names in {file}, found them one level down, under {name!r}; save that "
                f"dictionary alone: torch.save(torch.load(FILE)[{name!r}], FILE)."
            )
    if not tensors:
        raise UserError(f"Expected a dictionary of tensors in {file}, found no tensor in it; fetch it again.")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta:
            raise UserError(
                f"Expected dense tensors in {file}, found {name} of another layout; save it dense (Tensor.to_dense)."
            )
    if others := [name for name in state if name not in tensors]:
        log.warning("%s holds %s, which are no tensors: left out.", file, listed(others))
    return tensors
