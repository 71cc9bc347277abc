"""Import and export of ELMo's released files: a folder with options.json and an HDF5 file of weights (allenai/bilm-tf).

    {"lstm": {"dim": 4096, "projection_dim": 512, "n_layers": 2, "cell_clip": 3, "proj_clip": 3, ...},
     "char_cnn": {"filters": [[1, 32], ...], "n_highway": 2, "n_characters": 262, "embedding": {"dim": 16}, ...}}

    char_embed                                         [261, 16]
    CNN/W_cnn_N, CNN/b_cnn_N                           [1, width, 16, filters], [filters], N by the filters' order
    CNN_high_N/W_carry, b_carry, W_transform, ...      [2048, 2048], [2048]
    CNN_proj/W_proj, b_proj                            [2048, 512], [512]
    RNN_D/RNN/MultiRNNCell/CellN/LSTMCell/W_0, B, W_P_0   [1024, 16384], [16384], [4096, 512]; D: 0 forward, 1 backward

In W_0 the rows of the inputs precede the rows of the previous outputs. The gates are in TensorFlow's order: input,
candidate, forget, output. The forget gate has a further bias of 1, which no file holds.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import NotInstalled, UserError, in_file, listed, quoted
from plmjax.files import json_text, storage
from plmjax.interop import hdf5
from plmjax.interop.config_json import check_sizes
from plmjax.interop.conversion import Conversion, concatenate, one_to_one, parameter, read_parameters, write_tensors
from plmjax.interop.tensors import Tensors
from plmjax.layers.words.characters import CHARACTERS
from plmjax.models.elmo import DIRECTIONS, ElmoConfig, ElmoModel

LONGEST_WORD = 1 << 12
"""Maximum number of characters of a word; the published models read 50."""
OPTIONS = "options.json"
_GATES = np.array([0, 2, 1, 3])
"""Position of each gate of one order in the other order. The permutation is its own inverse."""
_GATE_KERNEL = one_to_one(
    lambda kernel: kernel[:, _GATES].reshape(kernel.shape[0], -1),
    lambda tensor, shape: tensor.reshape(shape)[:, _GATES],
)
_GATE_BIAS = one_to_one(lambda bias: bias[_GATES].reshape(-1), lambda tensor, shape: tensor.reshape(shape)[_GATES])
_FILTERS = one_to_one(lambda kernel: kernel[None], lambda tensor, shape: tensor[0])


def evidence(path: Path) -> str:
    """Return the evidence that a folder is ELMo's; empty if it is not."""
    if not (path / OPTIONS).is_file() or not _weights(path):
        return ""
    return f"{OPTIONS} and {_weights(path)[0].name}"


def load(path: Path, architecture: str = "auto") -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of a folder and its parameters, numpy float32.

    Raises:
        UserError: the options are not ELMo's or contradict the weights, the characters differ from
            layers/words/characters.py, or the weights are damaged.
    """
    if architecture not in ("auto", ElmoModel.__name__):
        raise UserError(
            f"Expected --architecture {ElmoModel.__name__} for ELMo, found {quoted(architecture)}; leave it out."
        )
    config = read_config(path / OPTIONS)
    with open_tensors(path) as tensors:
        _check_counts(config, tensors, path / OPTIONS)
        module = ElmoModel(config)
        rows = tensors.shapes.get("char_embed", (CHARACTERS,))[0]
        if rows != CHARACTERS:
            raise UserError(
                f"Expected vectors of {CHARACTERS} characters, 256 bytes and 5 marks, in {tensors.origin}, found "
                f"{rows}; take the weights of a model that was trained with these."
            )
        return module, read_parameters(module, example(module.config), conversions(module.config), tensors=tensors)[0]


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """Open the tensors of a folder for the duration of the block. Raises UserError unless it has one .hdf5 file."""
    weights = _weights(path)
    if len(weights) != 1:
        raise UserError(
            f"Expected one .hdf5 file in {path}, found {listed(file.name for file in weights)}; leave only that of the "
            "layers there."
        )
    with hdf5.open_tensors(weights[0]) as tensors:
        yield tensors


def save(module: nn.Module, params: Mapping[str, Any], path: Path) -> None:
    """Write options.json and weights.hdf5 into a folder. Reading them returns every bit unchanged.

    params: the parameters of `module`, an ElmoModel. Raises NotInstalled if h5py is not installed, UserError if a
    parameter is missing.
    """
    try:
        import h5py
    except ImportError:
        raise NotInstalled("Expected h5py to write ELMo's weights, found none; pip install 'plmjax[hdf5]'.") from None

    tensors = write_tensors(module, example(module.config), conversions(module.config), params)
    path.mkdir(parents=True, exist_ok=True)
    # The scratch file is locked already, and belongs to this process.
    with storage.replace_file(path / "weights.hdf5") as scratch, h5py.File(scratch, "w", locking=False) as file:
        for name, tensor in tensors.items():
            file[name] = tensor
    storage.write(path / OPTIONS, json.dumps(options(module.config), indent=2) + "\n")


def read_config(path: Path) -> ElmoConfig:
    """Return the config that an options.json describes.

    Raises:
        UserError: the file lacks an option, or has a value that no published model has.
    """
    try:
        found = json_text.read_object(path, "the options of an ELMo", "fetch the file again")
        lstm, characters = found["lstm"], found["char_cnn"]
        known = {
            "n_characters": characters["n_characters"] in (CHARACTERS, CHARACTERS + 1),
            "activation": characters["activation"] == "relu",
            "bidirectional": found.get("bidirectional", True) is True,
        }
        if wrong := [name for name, right in known.items() if not right]:
            raise UserError(
                f"Expected {CHARACTERS} characters (or {CHARACTERS + 1} with that of padding), relu and both "
                f"directions in {path}, found another {', '.join(wrong)}; take the options of another model."
            )
        widths, counts = zip(*characters["filters"], strict=True)
        config = {
            "max_characters_per_token": _whole(characters["max_characters_per_token"]),
            "character_dim": _whole(characters["embedding"]["dim"]),
            "filter_widths": tuple(map(_whole, widths)),
            "filter_counts": tuple(map(_whole, counts)),
            "n_highway": _whole(characters.get("n_highway") or 0),
            "n_layers": _whole(lstm["n_layers"]),
            "dim": _whole(lstm["dim"]),
            "projection_dim": _whole(lstm["projection_dim"]),
            "cell_clip": _number(lstm["cell_clip"]),
            "proj_clip": _number(lstm["proj_clip"]),
            "use_skip_connections": bool(lstm["use_skip_connections"]),
        }
        vocabulary = {"vocab_size": _whole(found["n_tokens_vocab"])} if "n_tokens_vocab" in found else {}
        with in_file(path):
            return ElmoConfig(**config, **vocabulary, dropout=_number(found.get("dropout", 0.1)))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UserError(
            f"Expected the options of an ELMo in {path}, found none or a wrong one ({json_text.reason(error)}); fetch "
            "the file again."
        ) from error


def _whole(value: object) -> int:
    """Return an integer of the options. Raises TypeError for another value, which int() would truncate or convert."""
    if type(value) is not int:
        raise TypeError(f"{quoted(value)}, which is no whole number")
    return value


def _number(value: object) -> float:
    """Return a finite number of the options. Raises TypeError as `_whole` does."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{quoted(value)}, which is no finite number")
    return float(value)


def _check_counts(config: ElmoConfig, tensors: Tensors, file: Path) -> None:
    """Check the number of layers and the word length before any array is created.

    Raises UserError if the tensors have fewer layers, or if the word length is unrealistic.
    """
    most = {"n_layers": len(tensors.shapes), "n_highway": len(tensors.shapes), "max_characters_per_token": LONGEST_WORD}
    for name, largest in most.items():
        if (value := getattr(config, name)) > largest:
            raise UserError(
                f"Expected {name} of at most {largest:,} in {file}, for {len(tensors.shapes)} tensors, found "
                f"{value:,}; take the options of these weights."
            )
    # The softmax of the published vocabulary, 793,471 words, is in another file.
    with in_file(file):
        check_sizes(
            dataclasses.replace(config, vocab_size=1), sum(math.prod(shape) for shape in tensors.shapes.values())
        )


def options(config: ElmoConfig) -> dict[str, Any]:
    """Return the content of an options.json."""
    return {
        "lstm": {
            "use_skip_connections": config.use_skip_connections,
            "projection_dim": config.projection_dim,
            "cell_clip": config.cell_clip,
            "proj_clip": config.proj_clip,
            "dim": config.dim,
            "n_layers": config.n_layers,
        },
        "char_cnn": {
            "activation": "relu",
            "filters": [list(pair) for pair in zip(config.filter_widths, config.filter_counts, strict=True)],
            "n_highway": config.n_highway,
            "embedding": {"dim": config.character_dim},
            "n_characters": CHARACTERS + 1,
            "max_characters_per_token": config.max_characters_per_token,
        },
        "n_tokens_vocab": config.vocab_size,
        "dropout": config.dropout,
    }


def conversions(config: ElmoConfig) -> tuple[Conversion, ...]:
    """Return the conversion of every parameter of an ElmoModel with this config to its tensor."""
    table = [
        parameter("words/characters", "char_embed"),
        parameter("words/projection/kernel", "CNN_proj/W_proj"),
        parameter("words/projection/bias", "CNN_proj/b_proj"),
    ]
    for number in range(len(config.filter_widths)):
        table.append(parameter(f"words/filters_{number}", f"CNN/W_cnn_{number}", _FILTERS))
        table.append(parameter(f"words/filter_bias_{number}", f"CNN/b_cnn_{number}"))
    for number in range(config.n_highway):
        for own, named in (("gate", "carry"), ("transform", "transform")):
            table.append(parameter(f"words/highway_{number}/{own}/kernel", f"CNN_high_{number}/W_{named}"))
            table.append(parameter(f"words/highway_{number}/{own}/bias", f"CNN_high_{number}/b_{named}"))
    for number, way in enumerate(DIRECTIONS):
        for layer in range(config.n_layers):
            own, named = f"{way}/layer_{layer}", f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            kernels = (f"{own}/input/kernel", f"{own}/recurrent_kernel")
            table.append(Conversion(kernels, (f"{named}/W_0",), concatenate(0, _GATE_KERNEL)))
            table.append(parameter(f"{own}/input/bias", f"{named}/B", _GATE_BIAS))
            table.append(parameter(f"{own}/projection_kernel", f"{named}/W_P_0"))
    return tuple(table)


def example(config: ElmoConfig) -> dict[str, np.ndarray]:
    """Return example inputs of an ElmoModel."""
    return {"characters": np.ones((1, 1, config.max_characters_per_token), np.int32)}


def _weights(path: Path) -> list[Path]:
    return sorted(path.glob("*.hdf5"))
