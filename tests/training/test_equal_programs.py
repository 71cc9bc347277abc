"""Programs do not depend on the process that lowers them: all hosts of a slice must compile the same ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.families import STEPS
from tests.paths import ROOT
from tests.xla_flags import cpu_flags

BY_DAY = ("bert",)
NIGHTLY = tuple(sorted(STEPS.keys() - {*BY_DAY}))
SEEDS = ("0", "1")
"""Of the hashes of strings, by which sets are ordered."""


# Minutes for all other systems: pytest -m nightly tests/training/test_equal_programs.py
@pytest.mark.parametrize("names", [BY_DAY, pytest.param(NIGHTLY, marks=pytest.mark.nightly)], ids=["bert", "others"])
def test_two_processes_lower_the_same_programs(names: tuple[str, ...], tmp_path: Path) -> None:
    """Training, evaluation and the first state, on eight devices."""
    started = []
    for seed in SEEDS:
        command = [sys.executable, "-m", "tests.training.lowered", str(tmp_path / seed), *names]
        environment = os.environ | {"XLA_FLAGS": cpu_flags(8), "PYTHONHASHSEED": seed}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment))
    first, *others = [json.loads(process.communicate()[0]) for process in started]
    assert {Path(file).parts[0] for file in first} == set(names) and any("initialize" in file for file in first)
    for other in others:
        differing = [file for file in first.keys() | other.keys() if first.get(file) != other.get(file)]
        assert not differing, sorted(differing)
