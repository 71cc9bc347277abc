"""XLA's flags of the tests: those that the installed XLA knows, and no others."""

from pathlib import Path

import pytest

from tests import xla_flags


def test_flags_that_xla_does_not_know_are_left_out() -> None:
    known = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    first, second = known.split()
    assert xla_flags.known(f"--xla_unknown=1 {first} --xla_cpu_unknown=true {second}") == known
    assert xla_flags.known(known) == known


def test_another_failure_is_not_taken_for_an_unknown_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "jaxlib.py").write_text("")
    with pytest.raises(RuntimeError, match="No module named"):
        xla_flags.known("--xla_backend_optimization_level=0")
