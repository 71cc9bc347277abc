"""Programs do not depend on the process that lowers them: all hosts of a slice must compile the same ones.

    python -m tests.training.test_equal_programs FOLDER bert gpt2

writes the programs of the first steps of small runs on eight simulated devices to FOLDER, and prints their digests as
JSON. The process has eight devices and a PYTHONHASHSEED of its own.
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from plmjax.experiment import Mesh
from tests.families import STEPS
from tests.paths import ROOT
from tests.training.built import program
from tests.training.test_step import materials
from tests.xla_flags import cpu_flags

SEEDS = ("0", "1")
"""Seeds of the hashes of strings, which order sets."""
ON_EXAMPLES = ("classification", "cvt", "taglm", "ulmfit")
"""Steps whose evaluation reads the examples of a file, which their sources do not have."""


def lower(name: str, folder: Path) -> None:
    """Write the programs of a step: training, evaluation, and all that is compiled for a state of zeros."""
    make, source = STEPS[name]
    run = dataclasses.replace(make(), mesh=Mesh(data=2, fsdp=2, tensor=2))
    built = program(run, source, 8)
    jax.config.update("jax_dump_ir_to", str(folder))
    built.initialize(0, materials(name), lambda name: True)
    (folder / "train.mlir").write_text(built.train.lower(built.state, built.batch).as_text())
    if name not in ON_EXAMPLES:
        inputs = jax.eval_shape(built.loss_inputs, built.state)
        lowered = built.evaluate.lower(inputs, built.evaluation_batch, jax.random.key(0))
        (folder / "evaluate.mlir").write_text(lowered.as_text())


# 12 s and minutes: pytest -m nightly tests/training/test_equal_programs.py
@pytest.mark.nightly
@pytest.mark.parametrize("names", [("bert",), tuple(sorted(STEPS.keys() - {"bert"}))], ids=["bert", "others"])
def test_two_processes_lower_the_same_programs(names: tuple[str, ...], tmp_path: Path) -> None:
    """Training, evaluation and the first state, on eight devices."""
    started = []
    for seed in SEEDS:
        command = [sys.executable, "-m", "tests.training.test_equal_programs", str(tmp_path / seed), *names]
        environment = os.environ | {"XLA_FLAGS": cpu_flags(8), "PYTHONHASHSEED": seed}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment))
    first, *others = [json.loads(process.communicate()[0]) for process in started]
    assert {Path(file).parts[0] for file in first} == set(names) and any("initialize" in file for file in first)
    for other in others:
        differing = [file for file in first.keys() | other.keys() if first.get(file) != other.get(file)]
        assert not differing, sorted(differing)


if __name__ == "__main__":
    place, *names = sys.argv[1:]
    for name in names:
        lower(name, Path(place) / name)
    files = sorted(Path(place).rglob("*.mlir"))
    print(json.dumps({str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}))
