"""Export of a checkpoint's function by jax.export: `plmjax export RUN FOLDER --to jax --platforms cpu tpu`.

The folder is read with jax and safetensors alone:

    function.bin              jax.export.deserialize(content).call(parameters, inputs)
    parameters.safetensors    the parameters, name -> array
    signature.json            names, shapes and dtypes of inputs and outputs, platforms, JAX's version, the date
    tokenizer.json, ...       the tokenizer, in the form of transformers

The function is the model of the task if the checkpoint was fine-tuned, else the encoder, else the pretrained model.
It takes a fixed number of rows and of tokens, since attention divides its work by them.

A JAX of more than six months later may refuse to read function.bin (JAX's documentation, "Export and serialization of
staged-out computations"). The checkpoint can be exported again.
"""

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.template import Template
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Experiment
from plmjax.files import locks, storage
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.interop import run_directories, tokenizer_files
from plmjax.layers import int8
from plmjax.training.checkpoints import checkpoints

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
FUNCTION, PARAMETERS, SIGNATURE = "function.bin", "parameters.safetensors", "signature.json"
TOLERANCE = 1e-5
"""Largest difference of the outputs after the function is read back, relative to max(1, the largest output)."""

READABLE = datetime.timedelta(days=180)
"""Time for which JAX promises that later versions read a serialized function."""

Arrays = dict[str, jax.Array]


def export_function(
    checkpoint: str | Path,
    directory: str | Path,
    *,
    platforms: Sequence[str] = ("cpu",),
    rows: int = 1,
    length: int | None = None,
) -> str:
    """Write the function of a checkpoint, its parameters and its tokenizer. Return a line of text on the checks.

    Args:
        checkpoint: run directory or checkpoint.
        platforms: some of `PLATFORMS`. The function can be called on each of them.
        rows: number of rows of a call.
        length: number of tokens of a row; by default the run's sequence length.

    Raises:
        UserError: an unknown platform, a number of rows below 1, a length that exceeds the model's positions, a model
            that reads more than a row of token ids, a folder with other files, or a function that gives other outputs
            after it was read.
    """
    import safetensors.numpy

    for platform in platforms:
        check_choice("--platforms", platform, PLATFORMS)
    if rows < 1 or (length is not None and length < 1):
        raise UserError(f"Expected positive numbers for --rows and --length, found {rows} and {length}; change them.")
    params, description = checkpoints.load_parameters(checkpoint)
    run = description.experiment
    module, template = _module(run, checkpoint)
    flat = _module_params(module, int8.remove_scales(params))
    length = run.data.sequence_length if length is None else length
    if run.model.longest is not None and length > run.model.longest:
        raise UserError(
            f"Expected a --length of at most the model's {run.model.longest} positions, found {length}; shorten it."
        )
    function = _function(module)
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in flat.items()}
    exported = jax.export.export(jax.jit(function), platforms=tuple(platforms))(
        shapes, _inputs(run.model, rows, length)
    )
    output = storage.path(directory)
    with locks.lock(output), storage.output(output) as folder:
        run_directories.claim(output, type(module).__name__, description.step)
        storage.write(folder / FUNCTION, bytes(exported.serialize()))
        with storage.replace_file(folder / PARAMETERS) as path:
            safetensors.numpy.save_file(flat, path)
        storage.write(folder / SIGNATURE, json.dumps(_signature(exported, module), indent=2) + "\n")
        tokenizer = description.load_tokenizer()
        tokenizer_files.write(tokenizer, tokenizer_files.rows_with(tokenizer.vocabulary, template), length, folder)
        checked = _compare(folder, function, flat, inputs=_example(run.model, rows, length), platforms=platforms)
    return (
        f"exported   {type(module).__name__} of step {description.step} to {directory}, a function of {rows} rows of "
        f"{length} tokens for {', '.join(platforms)}; {checked}; keep the checkpoint and export it again: later "
        f"versions of JAX read the function until {_today() + READABLE} at least"
    )


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _module(run: Experiment, checkpoint: str | Path) -> tuple[nn.Module, Template]:
    """Return the module to export, and the template of its rows."""
    system, execution = run.model.system, Execution()
    if system.kind is Kind.ENCODER_DECODER or "input_ids" not in system.reads:
        raise UserError(
            f"Expected a model of one row of token ids for --to jax in {checkpoint}, found {type(run.model).__name__}; "
            "export it without --to."
        )
    if isinstance(run.objective, TaskObjective):
        return run.objective.module(run.model, execution), run.objective.template(run.model)
    purpose = Purpose.EMBEDDING if Purpose.EMBEDDING in system else Purpose.PRETRAINING
    return run.model.module(purpose, execution), run.model.template


def _module_params(module: nn.Module, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the parameters of a module by name; for an encoder, the encoder branch of a model with a head."""
    tree = params.get(module.name, params) if module.name else params
    return {name: np.asarray(leaf) for name, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items()}


def _function(module: nn.Module) -> Callable[[Arrays, Arrays], Arrays]:
    """Return the function (parameters by name, inputs by name) -> outputs by name."""

    def function(parameters: Arrays, inputs: Arrays) -> Arrays:
        tree = flax.traverse_util.unflatten_dict(parameters, sep="/")
        found = module.apply({"params": tree}, **inputs, deterministic=True)
        outputs = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        outputs |= {"logits": found.logits} if hasattr(found, "logits") else {}
        return {name: value for name, value in outputs.items() if isinstance(value, jax.Array)}

    return function


def _inputs(config: ModelConfig, rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((rows, length), dtype) for name, dtype in _dtypes(config).items()}


def _dtypes(config: ModelConfig) -> dict[str, Any]:
    types = {"token_type_ids": jnp.int32} if config.template.typed else {}
    return {"input_ids": jnp.int32, "attention_mask": jnp.bool_, **types}


def _example(config: ModelConfig, rows: int, length: int) -> Arrays:
    """Return random rows whose second half is padding."""
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length), np.int32)
    mask = np.broadcast_to(np.arange(length) <= length // 2, ids.shape)
    fields = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: jnp.asarray(fields[name]) for name in _dtypes(config)}


def _signature(exported: jax.export.Exported, module: nn.Module) -> dict[str, Any]:
    def described(tree: Any) -> dict[str, Any]:
        return {name: {"shape": list(one.shape), "dtype": one.dtype.name} for name, one in tree.items()}

    (_, inputs), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return {
        "function": type(module).__name__,
        "platforms": list(exported.platforms),
        "jax": jax.__version__,
        "date": _today().isoformat(),
        "inputs": described(inputs),
        "outputs": described(outputs),
    }


def _compare(
    folder: Path,
    function: Callable[[Arrays, Arrays], Arrays],
    parameters: Mapping[str, np.ndarray],
    *,
    inputs: Arrays,
    platforms: Sequence[str],
) -> str:
    """Read the function back, call it, and compare its outputs. Return a text on the comparison."""
    import safetensors.numpy

    read = jax.export.deserialize(bytearray((folder / FUNCTION).read_bytes()))
    here = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if here not in platforms:
        return f"it was not called, because this machine is a {here}"
    found = read.call(safetensors.numpy.load_file(folder / PARAMETERS), inputs)
    expected = jax.jit(function)(dict(parameters), inputs)
    difference = max(
        float(np.abs(found[name] - value).max() / np.maximum(1.0, np.abs(value).max()))
        for name, value in expected.items()
    )
    if not difference <= TOLERANCE:
        raise UserError(
            f"Expected the outputs of the function in {folder} within {TOLERANCE:g}, found a difference of "
            f"{difference:.3g}; do not use this copy, and report the run."
        )
    return f"read back, its outputs differ by {difference:.1e} relative at most"
