"""The tensors of a transformers folder: safetensors or torch files, whole or in shards with an index.

What opens is what transformers opens. Nothing but tensors is ever unpickled.
"""

import contextlib
import functools
import importlib.util
import json
import logging
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.errors import UserError
from plmjax.interop.adapter import Tensors

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
TORCH = "pytorch_model.bin"
NESTING = ("model", "state_dict", "model_state_dict", "module")
"""Names under which training scripts keep the tensors beside their optimizer's."""
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8", "U8": "uint8"}
"""Name of a type in safetensors -> its usual name."""


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Tensors]:
    """The tensors of a folder, for as long as the block lasts.

    Of several forms the first of model.safetensors, its shards, pytorch_model.bin and its shards is read. Raises
    UserError where there is none, or a file is missing or damaged, naming it.
    """
    with contextlib.ExitStack() as stack:
        for name, read in ((WEIGHTS, functools.partial(_safetensors, stack)), (TORCH, _torch_tensors)):
            index = directory / f"{name}.index.json"
            if (directory / name).is_file():
                yield read([directory / name], directory)
                return
            if index.is_file():
                yield read(_shards(index), directory)
                return
        raise UserError(
            f"{directory} must hold {WEIGHTS} or {TORCH}, whole or in shards with an index, but has neither; save the "
            "model there (save_pretrained of transformers does)."
        )


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file, or a UserError that says `what` was expected there."""
    if not path.is_file():
        raise UserError(f"{path.parent} must hold {what} named {path.name}, but has none; check the folder.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must be JSON, but is not ({error}); fetch it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(found).__name__}; fetch it again.")
    return found


def _shards(index: Path) -> list[Path]:
    named = read_json(index, "an index of shards").get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise UserError(
            f"{index} must have a weight_map that names the file of every tensor, but has none; fetch it again."
        )
    files = [index.parent / name for name in sorted(set(named.values()))]
    for file in files:
        if not file.is_file():
            raise UserError(f"{index} names {file.name}, which is not there; fetch it too.")
    return files


def _safetensors(stack: contextlib.ExitStack, files: list[Path], directory: Path) -> Tensors:
    import ml_dtypes  # noqa: F401  teaches numpy bfloat16, which safetensors asks it for by name
    import safetensors

    shapes, dtypes, where = {}, {}, {}
    for file in files:
        try:
            content = stack.enter_context(safetensors.safe_open(file, framework="np"))
        except (safetensors.SafetensorError, OSError) as error:
            raise UserError(f"{file} must be a safetensors file, but is not ({error}); fetch it again.") from error
        for name in content.keys():  # noqa: SIM118  not a dict
            tensor = content.get_slice(name)
            shapes[name], where[name] = tuple(tensor.get_shape()), content
            dtypes[name] = DTYPES.get(tensor.get_dtype(), tensor.get_dtype())
    return Tensors(str(directory), shapes, dtypes, lambda name: where[name].get_tensor(name))


def _torch_tensors(files: list[Path], directory: Path) -> Tensors:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{files[0]} is a torch file and torch is not installed: install torch, or save the model as {WEIGHTS} "
            "(save_pretrained of transformers does)."
        )
    import torch

    state = {name: tensor.detach() for file in files for name, tensor in _torch_file(file).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in state.items()}

    def read(name: str) -> np.ndarray:
        return state[name].to(torch.float32).numpy()

    return Tensors(str(directory), shapes, dtypes, read)


def _torch_file(file: Path) -> Mapping[str, Any]:
    """Name -> tensor. What is no tensor is left out and logged, as transformers does."""
    import torch

    try:  # the form from before torch 1.6 is no zip archive and cannot be mapped to memory
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # pickle, zip and runtime errors alike mean that the file holds no plain tensors
        foreign = isinstance(error, pickle.UnpicklingError)
        reason = "it holds other objects, or is damaged" if foreign else str(error).split("\n")[0] or "it is empty"
        raise UserError(f"{file} must hold a dictionary of tensors, found none ({reason}); fetch it again.") from error
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UserError(
            f"{file} must hold a dictionary of tensors by their names, but holds a {type(state).__name__} without "
            "names; save the model's state_dict()."
        )
    tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
    for name in NESTING:
        if isinstance(state.get(name), Mapping):
            raise UserError(
                f"{file} must hold the tensors by their names, but has them one level down, under {name!r}; save that "
                f"dictionary alone: torch.save(torch.load(FILE)[{name!r}], FILE)."
            )
    if not tensors:
        raise UserError(f"{file} must hold a dictionary of tensors, but has no tensor in it; fetch it again.")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta:
            raise UserError(f"{file} must hold dense tensors, but {name} is not; save it dense (Tensor.to_dense).")
    if others := [name for name in state if name not in tensors]:
        log.warning("%s holds %s, which are no tensors: left out.", file, ", ".join(others))
    return tensors
