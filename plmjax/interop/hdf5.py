"""Tensors of HDF5 files. AllenNLP publishes the weights of ELMo in this form, and Keras the weights of its models.

The path is the name of a tensor: RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0. Links to other places are not followed.
"""

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, listed
from plmjax.files import json_text
from plmjax.interop.tensors import Tensors

log = logging.getLogger(__name__)

MOST_COMPRESSED = 64
"""Maximum number of bytes of values per stored byte. gzip stores weights in half their bytes, zeros in a thousandth."""
CHECKSUM = 4
"""Bytes of a chunk's checksum. HDF5 reads outside of its memory if a file says that a chunk has no more bytes."""
_DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""Errors of h5py on a damaged file."""
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def evidence(path: Path) -> str:
    """Return the evidence that a file is HDF5; empty if it is not."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return "the signature of HDF5" if file.read(len(_SIGNATURE)) == _SIGNATURE else ""


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """Open the tensors of a file for the duration of the body.

    Objects other than numeric arrays are left out and logged.

    Raises UserError if h5py is not installed (the extra `hdf5`), or if the file is damaged or has no tensor.
    """
    try:
        import h5py
    except ImportError:
        raise UserError(f"Expected h5py to read {path}, found it not installed; pip install 'plmjax[hdf5]'.") from None

    try:
        file = h5py.File(path, "r")
    except _DAMAGED as error:
        raise UserError(f"Expected an HDF5 file, found {path} ({json_text.reason(error)}); fetch it again.") from error
    with file:
        arrays: dict[str, Any] = {}
        others: list[str] = []

        def collect(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                stored_here = not item.external and not item.is_virtual
                if item.dtype.kind in "fiu" and item.shape is not None and stored_here:
                    arrays[name] = item
                else:
                    others.append(name)

        try:
            file.visititems(collect)
            hollow = [name for name, array in arrays.items() if not _is_stored(array)]
        except _DAMAGED as error:
            reason = json_text.reason(error)
            raise UserError(f"Expected an HDF5 file, found {path} damaged ({reason}); fetch it again.") from error
        if hollow:
            raise UserError(
                f"Expected all numbers of {hollow[0]} in {path}, found a file too small to hold them; fetch it again."
            )
        if others:
            log.warning("%s holds %s, which are no arrays of numbers: left out.", path, listed(others))
        if not arrays:
            raise UserError(f"Expected tensors in {path}, found none; fetch it again.")
        shapes = {name: array.shape for name, array in arrays.items()}
        dtypes = {name: array.dtype.name for name, array in arrays.items()}

        def read(name: str) -> Any:
            try:
                return arrays[name][()]
            except _DAMAGED as error:
                raise UserError(
                    f"Expected all of {name} in {path}, found it damaged ({json_text.reason(error)}); fetch it again."
                ) from error

        yield Tensors(str(path), shapes, dtypes, read)


def _is_stored(array: Any) -> bool:
    """Return true if the file stores the values of an array. HDF5 returns zeros for values that were never written."""
    if array.size == 0:
        return True
    if array.chunks is None:
        return array.id.get_storage_size() == array.nbytes
    chunks = math.prod(-(-length // chunk) for length, chunk in zip(array.shape, array.chunks, strict=True))
    sizes: list[int] = []
    array.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
    least = CHECKSUM if array.fletcher32 else 0
    return len(sizes) == chunks and min(sizes) > least and array.nbytes <= MOST_COMPRESSED * sum(sizes)
