"""Tensors of HDF5 files, as AllenNLP publishes ELMo's weights and Keras those of its models.

A tensor is named by its path: RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0. Links to elsewhere are not followed.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.errors import UserError
from plmjax.interop.tensors import Tensors

log = logging.getLogger(__name__)

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def evidence(path: Path) -> str:
    """By what a file is recognised as HDF5; empty where it is something else."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return "the signature of HDF5" if file.read(len(_SIGNATURE)) == _SIGNATURE else ""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Tensors]:
    """The tensors of a file, for as long as the block lasts; what is no array of numbers is left out and logged.

    Raises UserError where h5py is not installed (the extra `hdf5`), the file is damaged or holds no tensor.
    """
    try:
        import h5py
    except ImportError:
        raise UserError(f"Expected h5py to read {path}, found it not installed; pip install 'plmjax[hdf5]'.") from None

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"Expected an HDF5 file, found {path} ({error}); fetch it again.") from error
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

        file.visititems(collect)
        if others:
            log.warning("%s holds %s, which are no arrays of numbers: left out.", path, ", ".join(others))
        if not arrays:
            raise UserError(f"Expected tensors in {path}, found none; fetch it again.")
        shapes = {name: array.shape for name, array in arrays.items()}
        dtypes = {name: array.dtype.name for name, array in arrays.items()}

        def read(name: str) -> Any:
            try:
                return arrays[name][()]
            except OSError as error:
                raise UserError(
                    f"Expected all of {name} in {path}, found it damaged ({error}); fetch it again."
                ) from error

        yield Tensors(str(path), shapes, dtypes, read)
