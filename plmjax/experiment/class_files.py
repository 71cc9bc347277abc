"""Experiment files that define classes: imported, recorded in a run, and imported again by later commands.

A run records the file of each class that does not belong to plmjax, and of each name that a file declares, such as an
activation: {module: absolute path}. A later command imports such a file only if the user has named the same file, with
the same module name, as an experiment on this machine before. So a run directory from another person never makes a
command run code.

    STATE/experiments/DIGEST    one file that the user named: its module name and its path
"""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from plmjax import experiments
from plmjax.contracts.declared_names import DECLARED
from plmjax.errors import UserError, listed, quoted
from plmjax.files import json_text, storage

PACKAGE = __name__.partition(".")[0]
RECORD = "files"
"""Key in the record of an experiment for the files of its classes."""

_imported: dict[tuple[str, Path], ModuleType] = {}
"""(module name, file) -> module, for every experiment file that this process has imported."""
_brought: dict[str, tuple[str, Path]] = {}
"""Module -> (module name, file) of the experiment file that is this module, or that imported it first."""
_declared: dict[str, tuple[str, Path]] = {}
"""Name of `plmjax.contracts.declared_names` -> (module name, file) of the experiment file that declared it."""
_given: list[Path] = []
"""Files that the user named with --experiment."""


def load(path: Path, *, for_classes: bool = False) -> ModuleType:
    """Import an experiment file that the user named, and remember that the user named it.

    It gets a dotted module name, by which its classes are found later. The name is relative to plmjax.experiments, to
    the working directory or, outside of both, to the folder of the file.

    Args:
        path: the file.
        for_classes: true if the file was named only for the classes of a run, with --experiment.

    Raises:
        UserError: the file cannot be imported.
    """
    path = path.resolve()
    if path.parent == experiments.FOLDER:
        return _import(f"{experiments.__name__}.{path.stem}", path)
    folder = Path.cwd() if path.is_relative_to(Path.cwd()) else path.parent
    name = _module_name(path, folder)
    _remember(name, path)
    if for_classes:
        _given.append(path)
    _make_importable(folder)
    _make_importable(Path.cwd())
    return _import(name, path)


def record(value: Any) -> dict[str, str]:
    """Return a dict from module name to experiment file, for the classes and names in a result of `to_dict`."""
    words = set(_words(value))
    modules = {word.partition(":")[0] for word in words}
    found = {_brought[module] for module in modules & _brought.keys()}
    found |= {_declared[word] for word in words & _declared.keys()}
    return {name: str(path) for name, path in sorted(found)}


def restore(recorded: Any, source: str | os.PathLike) -> None:
    """Import the files of the classes of a recorded experiment that the user has named on this machine.

    Args:
        recorded: result of `to_dict`; the value at RECORD, if there is one, is a dict from module to file.
        source: file or folder of the record, for messages.

    Raises:
        UserError: a class is in no file that the user named, or is no longer in its file; or a file cannot be imported.
        ValueError: the value at RECORD has another form.
    """
    files = recorded.get(RECORD, {}) if isinstance(recorded, dict) else {}
    json_text.check(files, {str: str}, RECORD)
    for name, file in files.items():
        _restore_module(name, Path(file))
    for name in _types(recorded):
        if find(name) is None:
            raise UserError(f"{_explain_absence(name, files)} (in {os.fspath(source)}).")


def find(name: str) -> Any:
    """Return the object `module:Name` of plmjax or of a module that is imported already, or None."""
    module, _, qualified = name.partition(":")
    if module.partition(".")[0] == PACKAGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    return getattr(sys.modules.get(module), qualified, None)


@contextlib.contextmanager
def explain_mistakes(path: Path) -> Iterator[None]:
    """Convert an exception in a user's file into a one-sentence error with its line. Add the line to a `UserError`."""
    try:
        yield
    except UserError as error:
        line = _line(path, error)
        if line is None:
            raise
        raise UserError(f"{str(error).rstrip('.')} (line {line} of {path}).") from None
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else _line(path, error)
        place = f"{path}, line {line}" if line else f"{path}"
        text = str(error).splitlines()[0] if str(error) else "no message"
        raise UserError(
            f"Expected a file that composes an experiment, found {type(error).__name__} in {place}: "
            f"{text.rstrip('.')}; correct it."
        ) from error


def _line(path: Path, error: Exception) -> int | None:
    """Return the number of the last line of a file in the traceback of an exception, or None."""
    here = str(path.resolve())
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.realpath(frame.filename) == here]
    return lines[-1] if lines else None


def _import(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    known, sys.modules[name] = set(sys.modules) - {name}, module
    names = set(DECLARED)
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if not name.startswith(f"{PACKAGE}."):
        _imported[name, path] = module
        _brought.update((new, (name, path)) for new in sys.modules.keys() - known)
        _declared.update((new, (name, path)) for new in DECLARED - names)
    return module


def _module_name(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts)


def _make_importable(folder: Path) -> None:
    """Put a folder on sys.path, so that an experiment file can import modules of it."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _restore_module(name: str, path: Path) -> None:
    """Make the module of a recorded file available under its recorded name, if the user named the file."""
    folder = next((folder for folder in path.parents if _module_name(path, folder) == name), None)
    if folder is None:
        raise ValueError(f"the module {quoted(name)} is not in {quoted(str(path))}")
    if name in sys.modules and sys.modules[name] not in _imported.values():
        return  # the caller's own import
    same_name = {known: module for (_, known), module in _imported.items() if known.name == path.name}
    if given := [known for known in _given if known in same_name]:
        sys.modules[name] = same_name[given[-1]]
    elif path in same_name:
        sys.modules[name] = same_name[path]
    elif path.is_file() and _is_remembered(name, path):
        _make_importable(folder)
        with explain_mistakes(path):
            _import(name, path)
    elif same_name:
        sys.modules[name] = list(same_name.values())[-1]


def _types(value: Any) -> Iterator[str]:
    """Yield the names of the classes in a result of `to_dict`."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value["type"]
        for item in value.values():
            yield from _types(item)
    elif isinstance(value, list):
        for item in value:
            yield from _types(item)


def _words(value: Any) -> Iterator[str]:
    """Yield all texts in a result of `to_dict`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _words(item)


def _explain_absence(wanted: str, files: Mapping[str, str]) -> str:
    """Return the message about a class that was not found, without its period."""
    module = wanted.partition(":")[0]
    files = {module: files[module]} if module in files else files
    paths = listed((getattr(sys.modules.get(name), "__file__", file) for name, file in files.items()), 300)
    with_experiment = "name the file that defines it with --experiment"
    if not files:
        return (
            f"Expected a class of plmjax or of a loaded experiment file, found {quoted(wanted)}; {with_experiment}, or "
            f"import its module first"
        )
    if any(name in sys.modules for name in files):
        return (
            f"Expected the class {quoted(wanted)} in {paths}, found a file that has changed and lacks it; restore the "
            f"class, or {with_experiment}"
        )
    if not any(Path(file).is_file() for file in files.values()):
        return (
            f"Expected the class {quoted(wanted)} in {paths}, as the run records, found no such file on this machine; "
            f"{with_experiment} now"
        )
    return (
        f"Expected a class of a file that you have named as an experiment on this machine, found {quoted(wanted)} of "
        f"{paths}, which runs only if you name it; read it, then {with_experiment}"
    )


def _remembered(name: str, path: Path) -> tuple[Path, str]:
    """Return the state file for a named experiment file, and its contents."""
    text = f"{name} {path}\n"
    return storage.user_state("experiments", hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()), text


def _remember(name: str, path: Path) -> None:
    """Remember that the user named a file. Each has its own state file, so several processes can write at once."""
    # If the home directory cannot be written, this command still runs; a later one needs --experiment.
    with contextlib.suppress(OSError, RuntimeError):
        file, text = _remembered(name, path)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            storage.write(file, text.encode("utf-8", "surrogateescape"))


def _is_remembered(name: str, path: Path) -> bool:
    with contextlib.suppress(OSError, RuntimeError):
        file, text = _remembered(name, path)
        return file.read_bytes() == text.encode("utf-8", "surrogateescape")
    return False
