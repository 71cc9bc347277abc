"""Torch may be absent: the tests that need it are skipped, and no other."""

import ast
import sys
from pathlib import Path

import pytest

from tests import optional

TESTS = Path(__file__).resolve().parent


def test_the_first_use_of_an_absent_library_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for library in (optional.torch, optional.transformers):
        with pytest.raises(pytest.skip.Exception, match="needs torch, which the extra `parity` installs"):
            library.nn  # noqa: B018
        assert not hasattr(library, "__wrapped__")  # what pytest asks of everything in a test file skips nothing


@pytest.mark.nightly
def test_no_file_of_tests_imports_torch_by_itself() -> None:
    """It could not be collected without."""
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "torch" not in {name.partition(".")[0] for name in names}, file
