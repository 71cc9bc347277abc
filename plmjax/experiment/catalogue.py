"""Files that compose experiments: found by name in plmjax, or by path."""

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plmjax import experiments
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import class_files
from plmjax.files import storage

FUNCTION = "experiment"
"""Default function of a reference."""


def names() -> list[str]:
    """Return the names of the experiment files of plmjax, without suffix."""
    return sorted(file.stem for file in experiments.FOLDER.glob("[!_]*.py"))


def recorded(reference: str) -> Path | None:
    """Return the experiment.json of a run directory, or None if the reference names none."""
    path = storage.path(reference) / "experiment.json"
    return path if reference not in names() and path.is_file() else None


def find(reference: str) -> tuple[Path, str]:
    """Return (file, function) for NAME, NAME:FUNCTION, path/to/file.py or path/to/file.py:FUNCTION.

    Raises:
        UserError: there is no such file.
    """
    path, function = re.fullmatch(r"(.*?)(?::(\w*))?", reference).groups()
    function = function or FUNCTION
    if path in names():
        return experiments.FOLDER / f"{path}.py", function
    file = Path(path)
    if file.is_file() and file.suffix == ".py":
        return file, function
    if file.exists():
        kind = "a folder" if file.is_dir() else "a file of another kind"
        raise UserError(f"Expected an experiment, found {kind} at {quoted(path, 300)}; {_advice(file)}")
    if os.sep in path or file.suffix == ".py":
        raise UserError(f"Expected an experiment file, found no file {quoted(path, 300)}; {_advice(file)}")
    raise UserError(f"Expected an experiment, found none named {quoted(path)}; {nearest(path, names())}")


def _advice(file: Path) -> str:
    """Return advice for a file that does not exist: the nearest file in its folder, or the nearest name."""
    others = [str(other) for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
    hint = nearest(str(file), others)
    if hint.startswith("did"):
        return hint
    hint = nearest(file.stem, names())
    return (
        hint if hint.startswith("did") else "give the path of a Python file, or a name that plmjax experiments lists."
    )


def functions(file: Path) -> dict[str, str]:
    """Return a dict from function to the first line of its docstring, for functions that compose an experiment.

    They are public and can be called without arguments. The file is not imported.
    """
    return {
        node.name: _first_line(node)
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and len(node.args.args) == len(node.args.defaults)
    }


def page() -> str:
    """Return the list of the experiments of plmjax: name and first line of each."""
    files = [experiments.FOLDER / f"{name}.py" for name in names()]
    found = {
        file: {file.stem if name == FUNCTION else f"{file.stem}:{name}": line for name, line in functions(file).items()}
        for file in files
    }
    width = max(len(reference) for references in found.values() for reference in references)
    lines = []
    for file, references in found.items():
        lines.append(_first_line(ast.parse(file.read_text(encoding="utf-8"))))
        lines += [f"  {reference:<{width}}  {line}" for reference, line in references.items()]
        lines.append("")
    return "\n".join([*lines, f"Their files are in {experiments.FOLDER}; copy one to change more than options can."])


def _first_line(node: ast.Module | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def function(path: Path, name: str) -> Callable[[], Any]:
    """Return a function of an experiment file.

    Raises:
        UserError: the file cannot be imported, or has no such function.
    """
    with class_files.explain_mistakes(path):
        module = class_files.load(path)
    compose = getattr(module, name, None)
    if not callable(compose):
        known = list(functions(path))
        if name == FUNCTION and known:
            raise UserError(
                f"Expected a function {name!r} in {path}, found only {', '.join(known)}; name one of these, such as "
                f"{path}:{known[0]}."
            )
        raise UserError(f"Expected a function of {path}, found {quoted(name)}; {nearest(name, known)}")
    return compose


def load_classes(reference: str) -> None:
    """Import an experiment file, so that a checkpoint that names its classes can be read.

    Raises:
        UserError: there is no such file, or it cannot be imported.
    """
    path, _ = find(reference)
    with class_files.explain_mistakes(path):
        class_files.load(path, for_classes=True)
