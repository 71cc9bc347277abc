"""The summary of the skipped tests at the end of a run."""

import types
from pathlib import Path

import pytest

from tests import conftest, paths


def test_the_end_of_a_run_names_the_files_that_lack_what_lies_beside_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "SHARED", tmp_path)
    (tmp_path / "data").mkdir()
    assert paths.beside_the_checkout("data") == tmp_path / "data"
    with pytest.raises(pytest.skip.Exception) as skipped:
        paths.beside_the_checkout("goldens")
    reasons = {
        "a.py::x": f"Skipped: {skipped.value}",
        "a.py::y": f"Skipped: {skipped.value}",
        "b.py::z": "needs libtpu",
    }
    reports = [types.SimpleNamespace(nodeid=name, longrepr=("a.py", 1, reason)) for name, reason in reasons.items()]
    said: list[str] = []
    reporter = types.SimpleNamespace(stats={"skipped": reports}, section=lambda *_, **__: None, write_line=said.append)
    conftest.pytest_terminal_summary(reporter)
    assert said == [f"2 tests need {tmp_path}: a.py"]
    reporter.stats = {"skipped": reports[2:]}
    conftest.pytest_terminal_summary(reporter)
    assert len(said) == 1
