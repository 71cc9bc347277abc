"""Experiments as JSON: written to the run directory, read back and compared."""

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, in_file, nearest, quoted
from plmjax.experiment import class_files
from plmjax.experiment.settings import Experiment
from plmjax.files import json_text, storage

FREE = (
    "checkpoint.",
    "mesh.",
    "hosts.",
    "tracking.",
    "generation",
    "text_vectors",
    "data.path",
    "data.mixture.",
    "data.max_unknown",
    "data.train",
    "data.validation",
    "data.folder",
    "data.split",
    "training.log_every",
    "training.evaluate_every",
    "training.evaluation_batches",
    "training.platform",
    "training.unroll",
    "training.remat",
    "training.rings",
    "training.kernels",
    "training.compiler_options",
    "training.profile_steps",
    "objective.limits",
    "objective.ndcg_at",
    "objective.mrr_at",
    "objective.recall_at",
)
"""Prefixes of the fields that a resumed run may change, because they do not change its results. The text is identified
by the fingerprint of the prepared dataset, in any folder. A mixture that changes is recorded
(`plmjax.data.mixture.History`).
"""

PREPARED = (
    "tokenizer.",
    "data.input",
    "data.format",
    "data.text_key",
    "data.streams",
    "data.language",
    "data.held_out",
    "data.clean",
    "data.bad_words",
    "data.special_names",
    "data.layout.window",
    "data.layout.symmetric",
    "data.layout.min_count",
)
"""Prefixes of the fields that determine the tokenizer and the dataset of a run directory, or its word counts. If such a
field changes before the first training step, the tokenizer, the dataset and the counts are prepared again."""


_INFINITY = "inf"
"""Text for infinity, as on the command line. JSON has no such number."""


def to_dict(value: Any) -> Any:
    """Convert an experiment, or a part of it, to plain JSON data.

    A dataclass becomes a dict whose "type" is `module:Class`, and infinity becomes the text "inf".
    """
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": f"{type(value).__module__}:{type(value).__qualname__}", **fields}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if value == math.inf:
        return _INFINITY
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"An experiment holds plain data and dataclasses; found {value!r} of {type(value).__name__}.")


def _dataclass_named(name: str) -> type:
    """Return the class `module:Class`, which must belong to plmjax or to a module that is imported already.

    A file that names another module does not cause its import. A user's classes are found only after their experiment
    file was loaded or their module was imported.
    """
    found = class_files.find(name) if isinstance(name, str) else None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise UserError(
            f"Expected a class of plmjax or of a loaded experiment file, found {quoted(name)}; name the file that "
            f"defines it with --experiment, or import its module first."
        )
    return found


def from_dict(value: Any) -> Any:
    """Convert the result of `to_dict` back.

    Raises:
        UserError: a class or field does not exist in this version of plmjax.
    """
    if isinstance(value, list):
        return tuple(from_dict(item) for item in value)
    if not isinstance(value, dict):
        return value
    cls = _dataclass_named(value["type"])
    name = cls.__qualname__
    fields = {field.name for field in dataclasses.fields(cls)}
    values = {key: from_dict(item) for key, item in value.items() if key != "type"}
    hints = typing.get_type_hints(cls)
    for unknown in sorted(values.keys() - fields):
        raise UserError(
            f"Expected a field of {name} in the experiment, found {quoted(unknown)}; {nearest(unknown, fields)}"
        )
    for field, item in values.items():
        if hints[field] is float and item == _INFINITY:
            values[field] = item = math.inf
        if not _fits(item, hints[field]):
            raise UserError(
                f"Expected {name}.{field} of type {_type_name(hints[field])} in the experiment, found {quoted(item)}; "
                f"write it again with the experiment's file."
            )
    return cls(**values)


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type. An integer is accepted where a float is expected."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _fits(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        if arguments[1:] == (...,):
            return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(_fits, value, arguments))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is Any:  # a model or data of any class
        return value is None or dataclasses.is_dataclass(value)
    return isinstance(value, origin or kind)


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", "") or str(kind)


def to_record(experiment: Experiment) -> dict[str, Any]:
    """Return `to_dict` of an experiment, with the files of the classes and names that are not in plmjax."""
    found = to_dict(experiment)
    files = class_files.record(found)
    return found | {class_files.RECORD: files} if files else found


def from_record(record: Any, source: str | os.PathLike) -> Experiment:
    """Convert the result of `to_record` back. Files of its classes that the user has named are imported.

    source: file or folder of the record, for messages.

    Raises:
        UserError: a class or field does not exist here; the message names the recorded file of a class.
        ValueError, KeyError, TypeError, AttributeError, RecursionError: `record` is no record of an experiment.
    """
    class_files.restore(record, source)
    with in_file(source, "--"):
        found = from_dict({name: value for name, value in record.items() if name != class_files.RECORD})
    if not isinstance(found, Experiment):
        raise TypeError(f"its experiment is a {type(found).__name__}")
    return found


def read(path: Path) -> Experiment:
    """Return the experiment of an experiment.json.

    Raises:
        UserError: the file is missing or has no experiment.
    """
    try:
        return from_record(json_text.parse(storage.contents(path)), path)
    except FileNotFoundError:
        raise UserError(f"Expected {path.name} in {path.parent}, found none; give the folder of a run.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"Expected an experiment that plmjax wrote in {path}, found: {json_text.reason(error)}; name another run."
        ) from error


def write(experiment: Experiment, path: Path) -> None:
    """Write experiment.json, atomically."""
    storage.write(path, json.dumps(to_record(experiment), indent=2) + "\n")


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return `to_dict` as a flat dict with dotted names: {"training.steps": 1000, ...}."""
    value = to_dict(value) if dataclasses.is_dataclass(value) else value
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    if not isinstance(value, dict):
        return {prefix: value}
    flat = {}
    for key, item in value.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat


def differences(before: Experiment, after: Experiment, free: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Return a dict from dotted field to (before, after) for the fields in which two experiments differ.

    Fields that begin with a name in `free` are not compared.
    """
    old, new = flatten(before), flatten(after)
    names = sorted(name for name in old.keys() | new.keys() if not name.startswith(tuple(free)))
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}
