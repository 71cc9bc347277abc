"""A corpus without download: docstrings of Python's standard library and of installed scientific libraries.

Every machine that can install the project has megabytes of this English text. Source files are parsed, never imported.
Only the running text of a docstring is used, and a paragraph that occurs in several places is used once.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from plmjax.data.workers import Workers

LIBRARIES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "matplotlib": "matplotlib",
    "optax": "optax",
    "flax": "flax",
}
"""Import name -> distribution, in reading order. All are dependencies of plmjax, so every machine has them."""
LONGEST_SOURCE = 1 << 20
_SKIPPED = {
    "test",
    "tests",
    "testing",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "_vendor",
}
_ONE_PROCESS_FILES = 64
_TASK_FILES = 16


def sources() -> list[dict]:
    """Return the source of the corpus as one entry, with a hash over the names and sizes of the files."""
    digest, total, libraries = hashlib.sha256(), 0, [f"Python {platform.python_version()}"]
    for name, path in _files():
        size = path.stat().st_size
        total += size
        digest.update(f"{name}/{path.name} {size}\n".encode())
    for name in LIBRARIES:
        if _root(name) is not None:
            libraries.append(f"{name} {importlib.metadata.version(LIBRARIES[name])}")
    return [{"path": f"documentation of {', '.join(libraries)}", "bytes": total, "digest": digest.hexdigest()}]


@functools.cache
def documents() -> tuple[tuple[str, str], ...]:
    """Return (name of a module or class, its documentation with one paragraph per line), always in the same order.

    A class comes with its methods, and a module with its functions.
    """
    files = list(_files())
    seen: set[str] = set()
    found = []
    for (module, _), pieces in zip(files, _read_all([path for _, path in files]), strict=True):
        for name, paragraphs in pieces:
            fresh = [p for p in dict.fromkeys(paragraphs) if p not in seen]
            seen.update(fresh)
            if sum(map(len, fresh)) >= 200:  # a shorter text is not a document
                found.append((f"{module}.{name}" if name else module, "\n".join(fresh)))
    return tuple(found)


def _root(name: str) -> Path | None:
    """Return the folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    locations = list(spec.submodule_search_locations or []) if spec else []
    return Path(locations[0]) if locations else None


def _files() -> Iterator[tuple[str, Path]]:
    """Yield (module name, source file) of the standard library and the libraries, sorted within each."""
    roots = [("", Path(sysconfig.get_paths()["stdlib"]))]
    roots += [(name, root) for name in LIBRARIES if (root := _root(name)) is not None]
    for package, root in roots:
        found = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [s for s in subfolders if s not in _SKIPPED and not s.startswith(".")]
            parts = Path(folder).relative_to(root).parts
            for name in names:
                path = Path(folder, name)
                if name.endswith(".py") and path.stat().st_size <= LONGEST_SOURCE:
                    module = ".".join(filter(None, (package, *parts, name.removesuffix(".py")))).removesuffix(
                        ".__init__"
                    )
                    found.append((module, path))
        yield from sorted(found)


def _read_all(paths: list[Path]) -> Iterator[list[tuple[str, list[str]]]]:
    processes = min(os.cpu_count() or 1, len(paths) // _ONE_PROCESS_FILES)
    if processes < 2:
        yield from map(_read, paths)
        return
    parts = ((paths[start : start + _TASK_FILES],) for start in range(0, len(paths), _TASK_FILES))
    with Workers(processes, None, doing="reading", advice="close other programs and repeat") as workers:
        yield from itertools.chain.from_iterable(workers.results(_read_files, parts))


def _read_files(paths: list[Path]) -> list[list[tuple[str, list[str]]]]:
    return list(map(_read, paths))


def _read(path: Path) -> list[tuple[str, list[str]]]:
    """Return (class name or "", paragraphs) of a source file: the module first, then its classes."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of strings with invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # templates and files of other Python versions
        return []
    pieces: list[tuple[str, list[str]]] = []
    _collect(tree, "", pieces)
    return pieces


def _collect(node: ast.AST, name: str, pieces: list[tuple[str, list[str]]]) -> None:
    paragraphs: list[str] = []
    pieces.append((name, paragraphs))
    paragraphs += prose(ast.get_docstring(node, clean=True) or "")
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            paragraphs += prose(ast.get_docstring(child, clean=True) or "")
        elif isinstance(child, ast.ClassDef):
            _collect(child, f"{name}.{child.name}".lstrip("."), pieces)


# ------------------------------------------------------------------------------------------------ strings to prose

_UNDERLINE = re.compile(r"([=\-~^\"'`#*+])\1{2,}\s*$")
_ENTRY = re.compile(r"(?:\*{0,2}[\w.,*` ]{1,40}|-|\*|•|\d+[.)])\s*(?:\([^)]{0,60}\))?\s*:\s+(?=\S)|[-*•]\s+|\d+[.)]\s+")
_NUMPY_ENTRY = re.compile(r"[\w*, .{}'\"]+ : \S.*|[\w*, ]+$")
_DROPPED_SECTIONS = {"references", "see also", "examples", "example", "raises", "usage", "methods", "attributes"}
_MARKUP = (
    (re.compile(r":[a-z]+(?::[a-z]+)?:`~?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`{1,2}~?([^`]*?)(?:\s*<[^`>]*>)?`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"\*{1,2}(\w[^*\n]*?)\*{1,2}"), r"\1"),
    (re.compile(r"\s*\[[\w#.*]+\]_"), ""),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"</?[a-z][^<>]*>|\|(\w+)\|"), r"\1"),
)
_SENTENCE = re.compile(r"[A-Z\"'(].*[.!?:]['\")]?$")


def prose(docstring: str) -> list[str]:
    """Return the paragraphs of running text in a docstring, one line each.

    Left out are doctests, literal blocks, directives, tables, formulas, names and types of parameters, and sections
    that have nothing else. The descriptions of parameters are text and are used.
    """
    paragraphs: list[str] = []
    current: list[str] = []
    literal = -1  # indentation above which a literal block or directive continues
    dropped = doctest = False

    def end() -> None:
        paragraph = _plain(" ".join(current))
        current.clear()
        if _is_prose(paragraph):
            paragraphs.append(paragraph)

    lines = inspect.cleandoc(docstring).split("\n")
    indent_before = 0
    for index, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not text:
            end()
            doctest = False
            continue
        if literal >= 0 and indent > literal:
            continue
        literal = -1
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        title = text.rstrip(":").lower()
        if indent == 0 and (_UNDERLINE.fullmatch(following) or (text.endswith(":") and title in _DROPPED_SECTIONS)):
            end()
            dropped = title in _DROPPED_SECTIONS
        elif indent == 0 and text.endswith(":") and " " not in text:  # Google's Args:, Returns:
            end()
            dropped = False
        elif _UNDERLINE.fullmatch(text) or dropped:
            end()
        elif doctest or text.startswith((">>>", "...", "$ ", "```", "In [")):
            end()
            doctest = True
        elif text.startswith((".. ", ":param", "@", "|", "+-")):
            end()
            literal = indent
        else:
            if indent != indent_before and current and indent < indent_before:
                end()
            if following and _NUMPY_ENTRY.fullmatch(text) and _indent(lines[index + 1]) > indent:
                end()
                text = ""
            elif entry := _ENTRY.match(text):
                end()
                text = text[entry.end() :]
            if text.endswith("::"):
                text, literal = text[:-1], indent
            current.append(text)
        indent_before = indent
    end()
    return paragraphs


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _plain(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    """Return whether a paragraph consists of sentences: it begins and ends like a sentence and is made of words."""
    if len(text) < 30 or text.count(" ") < 4 or not _SENTENCE.match(text):
        return False
    return sum(c.isalpha() or c == " " for c in text) > 0.85 * len(text)
