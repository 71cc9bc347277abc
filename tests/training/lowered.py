"""Digests of the programs of the first steps of small runs on eight simulated devices, as this process lowers them.

    python -m tests.training.lowered FOLDER bert gpt2

FOLDER receives the programs; JSON is printed. The process has eight devices and a PYTHONHASHSEED of its own.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import jax

from plmjax.experiment import Mesh
from tests.families import STEPS
from tests.training.built import program
from tests.training.test_step import materials

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


if __name__ == "__main__":
    place, *names = sys.argv[1:]
    for name in names:
        lower(name, Path(place) / name)
    files = sorted(Path(place).rglob("*.mlir"))
    print(json.dumps({str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}))
