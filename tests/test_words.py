"""The words of docstrings: a summary says what a thing is or does, and does not open like a question."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPENINGS = re.compile(r"(What|How|Whether|Of|Which|Who|Where)\b")
FILES = sorted(path for folder in ("plmjax", "tpu") for path in (ROOT / folder).rglob("*.py"))


def docstrings(path: Path) -> list[tuple[int, str]]:
    """(line, text) of every string that stands alone: of modules, classes, functions and attributes."""
    return [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


@pytest.mark.parametrize("folder", ["plmjax", "tpu"])
def test_no_docstring_opens_like_a_question(folder: str) -> None:
    found = [(path, docstrings(path)) for path in FILES if path.is_relative_to(ROOT / folder)]
    assert sum(len(texts) for _, texts in found) > 50
    assert not [(path.name, line) for path, texts in found for line, text in texts if OPENINGS.match(text)]
