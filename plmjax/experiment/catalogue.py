"""Files that compose experiments: found by name in plmjax, or by path."""

import ast
import dataclasses
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plmjax import experiments
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import class_files
from plmjax.files import storage

FUNCTION = "experiment"
"""Function of a file whose reference names none."""


def names() -> list[str]:
    """Return the names of the experiment files of plmjax, without suffix."""
    return sorted(file.stem for file in experiments.FOLDER.glob("[!_]*.py"))


def recorded(reference: str) -> Path | None:
    """Return the path of experiment.json if the reference is a run directory, else None."""
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
    hint = nearest(path.lower(), names(), catalogue="plmjax experiments lists all of them.")
    raise UserError(f"Expected an experiment, found none named {quoted(path)}; {hint}")


def _advice(file: Path) -> str:
    """Return advice for a path that is no experiment file: the nearest file in its folder, or the nearest name."""
    others = [str(other) for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
    hint = nearest(str(file), others)
    if hint.startswith("did"):
        return hint
    hint = nearest(file.stem, names())
    return (
        hint if hint.startswith("did") else "give the path of a Python file, or a name that plmjax experiments lists."
    )


def functions(file: Path) -> dict[str, str]:
    """Return a dict from name to first docstring line, for the functions of a file that compose an experiment.

    These are the public functions that can be called without arguments. The file is not imported.
    """
    return {
        node.name: _first_line(node)
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and len(node.args.args) == len(node.args.defaults)
    }


@dataclasses.dataclass(frozen=True)
class Listed:
    """A file of experiments in the list.

    title: first line of the file's docstring.
    systems: names of the modules of plmjax.models that it imports.
    lines: dict from the reference of an experiment to the first docstring line of its function.
    """

    name: str
    title: str
    systems: tuple[str, ...]
    lines: dict[str, str]

    @classmethod
    def read(cls, name: str) -> "Listed":
        """Read the experiment file `name` of plmjax without importing it."""
        file = experiments.FOLDER / f"{name}.py"
        tree = ast.parse(file.read_text(encoding="utf-8"))
        modules = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
        systems = tuple(one.rpartition(".")[2] for one in modules if one.startswith("plmjax.models."))
        lines = {name if one == FUNCTION else f"{name}:{one}": line for one, line in functions(file).items()}
        return cls(name, _first_line(tree), systems, lines)

    @property
    def place(self) -> tuple[int, str]:
        """The sort key in the list: tiny experiments, then others, then published runs and runs on slices."""
        published = "as published" in self.title or re.search(r"_\d+x\d+$", self.name)
        return (0 if self.name.endswith("_tiny") else 2 if published else 1), self.name

    def texts(self) -> dict[str, str]:
        """Return a dict from reference to the searched text: reference, line, title and systems, in lower case."""
        return {
            reference: " ".join((reference, line, self.title, *self.systems)).lower()
            for reference, line in self.lines.items()
        }

    def with_words(self, words: Sequence[str]) -> "Listed":
        """Return the file with only the experiments that have all words, or words that begin with them."""
        kept = {
            reference: self.lines[reference]
            for reference, text in self.texts().items()
            if all(re.search(rf"(?<![^\W_]){re.escape(word.lower())}", text) for word in words)
        }
        return dataclasses.replace(self, lines=kept)


def page(words: Sequence[str] = (), width: int = 80) -> str:
    """Return the printed list of the experiments of plmjax that have all words in their name, title or system.

    width: maximum number of characters of a line.

    Raises:
        UserError: no experiment has all words.
    """
    files = sorted(map(Listed.read, names()), key=lambda file: file.place)
    chosen = [found for file in files if (found := file.with_words(words)).lines]
    if not chosen:
        known = {word for file in files for text in file.texts().values() for word in re.findall(r"[^\W\d]\w+", text)}
        unknown = [word for word in words if not any(file.with_words([word]).lines for file in files)]
        hint = nearest(unknown[0].lower(), known) if unknown else "name fewer words."
        found = unknown[0] if unknown else " ".join(words)
        raise UserError(f"Expected words of the name, title or system of an experiment, found {quoted(found)}; {hint}")
    lines: list[str] = []
    for file in chosen:
        lines += textwrap.wrap(file.title, width)
        for reference, line in file.lines.items():
            start = f"  {reference:<24}  "
            lines += textwrap.wrap(line, width, initial_indent=start, subsequent_indent=" " * 28)
        lines.append("")
    lines += ["Copy a file to change more than options can. The files are in", str(experiments.FOLDER)]
    return "\n".join(lines)


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
    """Import an experiment file, to read a checkpoint that uses its classes.

    Raises:
        UserError: there is no such file, or it cannot be imported.
    """
    path, _ = find(reference)
    with class_files.explain_mistakes(path):
        class_files.load(path, for_classes=True)
