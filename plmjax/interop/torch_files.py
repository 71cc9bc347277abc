"""Files of torch tensors: a state_dict as torch.save writes it (.pt, .pth, .bin). No code in a file is run."""

import argparse
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

from plmjax.errors import NotInstalled, UserError, listed, quoted
from plmjax.files import json_text
from plmjax.interop.tensors import Tensors

log = logging.getLogger(__name__)

NESTING = ("model", "state_dict", "model_state_dict", "module")
"""Names under which training scripts store the model's tensors beside the optimizer's."""

_DAMAGED = (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError, EOFError, OSError, ValueError, zlib.error)
"""Errors of zipfile on a file that is not a complete archive."""
_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of a file from before torch 1.6: its magic number, pickled."""


def _is_archive(path: Path) -> bool:
    """Return whether a file is a zip archive, also a damaged one; `is_zipfile` raises an error for a split one."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:
        return True


def evidence(path: Path) -> str:
    """Return the evidence that a file is torch's; empty if it is not."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        if file.read(len(_BEFORE_ZIP)) == _BEFORE_ZIP:
            return "torch's magic number"
    if _is_archive(path):
        with contextlib.suppress(*_DAMAGED), zipfile.ZipFile(path) as archive:
            if any(name.endswith("/data.pkl") for name in archive.namelist()):
                return "data.pkl in a zip archive"
    return ""


def read_head(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of the part with the tensor names, for a file that `evidence` recognised.

    Return no bytes if the file is damaged.
    """
    if not _is_archive(path):
        with path.open("rb") as file:
            return file.read(size)
    with contextlib.suppress(*_DAMAGED), zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(pickled) as file:
            return file.read(size)
    return b""


def _check_archive(path: Path) -> None:
    """Check that torch wrote an archive and that its contents have not changed. Raises UserError otherwise.

    torch stores every record uncompressed, with its checksum. A compressed record can be a thousand times as large as
    the file, and torch never compares the checksums.
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
    """Write tensors in the form of torch.save. Raises NotInstalled if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise NotInstalled("Expected torch to write its kind of file, found it not installed; install torch.")
    import torch

    torch.save({name: torch.tensor(tensor) for name, tensor in tensors.items()}, path)


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """Open the tensors of a file. Raises UserError if torch is not installed or the file holds anything else."""
    yield read([path], path)


def read(files: Sequence[Path], origin: Path) -> Tensors:
    """Return the tensors of several files as one checkpoint; `origin` is its name in messages."""
    found = {name: tensor for file in files for name, tensor in _tensors(state(file), file).items()}
    return from_state_dict(found, origin)


def from_state_dict(found: Mapping[str, Any], origin: Path) -> Tensors:
    """Return the tensors of a state_dict. Other objects are left out and logged, as in transformers."""
    import torch

    tensors = {name: tensor.detach() for name, tensor in _tensors(found, origin).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}

    def numbers(name: str) -> np.ndarray:
        bfloat16 = tensors[name].dtype == torch.bfloat16  # torch cannot convert bfloat16 to an array
        try:
            return (tensors[name].float() if bfloat16 else tensors[name]).numpy()
        except (TypeError, RuntimeError) as error:  # float8 and quantized integers have no array either
            raise UserError(
                f"Expected numbers that numpy has in {name} of {origin}, found {dtypes[name]}; turn them into float32 "
                "and save them again."
            ) from error

    return Tensors(str(origin), shapes, dtypes, numbers)


def state(file: Path) -> Mapping[str, Any]:
    """Return the dictionary in a file. Nothing is unpickled but tensors, plain values and argparse's Namespace.

    Raises:
        UserError: torch is not installed, or the file is damaged or holds anything else.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"Expected torch to read {file}, found it not installed; install torch, or save the model as "
            "model.safetensors (save_pretrained of transformers does)."
        )
    import torch

    if _is_archive(file):
        _check_archive(file)
    try:  # a file from before torch 1.6 is not a zip archive and cannot be mapped to memory
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_archive(file))
    except Exception as error:  # pickle, zip and runtime errors all mean that the file holds no plain tensors
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
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise UserError(
            f"Expected a dictionary of tensors by their names in {file}, found a {type(found).__name__} without names; "
            "save the model's state_dict()."
        )
    return found


def _tensors(found: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return the tensors of a dictionary by name. Raise UserError unless all are dense and stored completely."""
    import torch

    tensors = {name: value for name, value in found.items() if torch.is_tensor(value)}
    for name in NESTING:
        if isinstance(found.get(name), Mapping):
            raise UserError(
                f"Expected tensors by their names in {file}, found them one level down, under {name!r}; save that "
                f"dictionary alone: torch.save(torch.load(FILE)[{name!r}], FILE)."
            )
    if not tensors:
        raise UserError(f"Expected a dictionary of tensors in {file}, found no tensor in it; fetch it again.")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
            raise UserError(
                f"Expected dense tensors in {file}, found {name} of another layout; save it dense (Tensor.to_dense)."
            )
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise UserError(
                f"Expected all numbers of {name} in {file}, found fewer, which it repeats in {list(tensor.shape)}; "
                "save it whole (Tensor.contiguous)."
            )
    if others := [name for name in found if name not in tensors]:
        log.warning("%s holds %s, which are no tensors: left out.", file, listed(others))
    return tensors
