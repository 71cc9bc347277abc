"""The files of a transformers folder: its config, and safetensors or torch files, whole or in shards with an index.

The same folders open as in transformers.
"""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.errors import UserError
from plmjax.files import json_text, storage
from plmjax.interop import torch_files
from plmjax.interop.tensors import Tensors

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TORCH = "pytorch_model.bin"
DTYPES = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""Name of a type in safetensors -> its usual name."""


def evidence(path: Path) -> str:
    """Return the evidence that a folder is transformers'; empty if it is not."""
    return CONFIG if (path / CONFIG).is_file() else ""


@contextlib.contextmanager
def open_tensors(directory: Path) -> Iterator[Tensors]:
    """Open the tensors of a folder for the duration of the block.

    The first form that exists is read: model.safetensors, its shards, pytorch_model.bin, its shards. Raises UserError
    if there is none, or naming a file that is missing or damaged.
    """
    with contextlib.ExitStack() as stack:
        for name, read in ((WEIGHTS, functools.partial(_safetensors, stack)), (TORCH, torch_files.read)):
            index = directory / f"{name}.index.json"
            if (directory / name).is_file():
                yield read([directory / name], directory)
                return
            if index.is_file():
                yield read(_shards(index), directory)
                return
        raise UserError(
            f"Expected {WEIGHTS} or {TORCH} in {directory}, whole or in shards with an index, found neither; save the "
            "model there (save_pretrained of transformers does)."
        )


def safetensors_evidence(path: Path) -> str:
    """Return the evidence that a file is safetensors; empty if it is not."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(9)
    header = int.from_bytes(start[:8], "little")
    return "the header of safetensors" if start[8:] == b"{" and header <= path.stat().st_size else ""


def write(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Write config.json and model.safetensors. Files of the folder are replaced one by one, each when it is complete.

    Raises:
        OSError, safetensors.SafetensorError: the folder cannot be written.
    """
    import safetensors.numpy

    directory.mkdir(parents=True, exist_ok=True)
    with storage.replace_file(directory / WEIGHTS) as path:
        safetensors.numpy.save_file(dict(tensors), path, metadata={"format": "pt"})
    with storage.replace_file(directory / CONFIG) as path:
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def open_safetensors(path: Path) -> Iterator[Tensors]:
    """Open the tensors of one safetensors file for the duration of the block."""
    with contextlib.ExitStack() as stack:
        yield _safetensors(stack, [path], path)


def _shards(index: Path) -> list[Path]:
    named = json_text.read_object(index, "an index of shards", "fetch it again").get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise UserError(
            f"Expected a weight_map in {index} that names the file of every tensor, found none; fetch it again."
        )
    files = [index.parent / storage.plain_name(name, index) for name in sorted(set(named.values()))]
    for file in files:
        if not file.is_file():
            raise UserError(f"Expected {file.name}, which {index} names, found no such file; fetch it too.")
    return files


def _safetensors(stack: contextlib.ExitStack, files: Sequence[Path], origin: Path) -> Tensors:
    import ml_dtypes  # noqa: F401  teaches numpy bfloat16, which safetensors asks it for by name
    import safetensors

    shapes, dtypes, where = {}, {}, {}
    for file in files:
        try:
            content = stack.enter_context(safetensors.safe_open(file, framework="np"))
        except (safetensors.SafetensorError, OSError) as error:
            raise UserError(
                f"Expected a safetensors file, found {file} ({json_text.reason(error)}); fetch it again."
            ) from error
        for name in content.keys():  # noqa: SIM118  not a dict
            tensor = content.get_slice(name)
            shapes[name], where[name] = tuple(tensor.get_shape()), content
            dtypes[name] = DTYPES.get(tensor.get_dtype(), tensor.get_dtype())

    def read(name: str) -> np.ndarray:
        try:
            return where[name].get_tensor(name)
        except (AttributeError, TypeError) as error:  # numpy has no float8
            raise UserError(
                f"Expected numbers that numpy has in {name} of {origin}, found {dtypes[name]}; turn them into float32 "
                "and save them again."
            ) from error

    return Tensors(str(origin), shapes, dtypes, read)
