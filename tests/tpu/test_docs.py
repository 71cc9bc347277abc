"""The program of docs/operations.md."""

import re
from pathlib import Path

import jax
import numpy as np

from plmjax.training.checkpoints import checkpoints
from tests.paths import ROOT


def test_orbax_alone_reads_a_checkpoint(small_run: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(lines.replace("RUN/checkpoints/STEP", str(small_run / "checkpoints" / "6")), names)
    parameters, _ = checkpoints.load_parameters(small_run)
    jax.tree.map(np.testing.assert_array_equal, names["params"], parameters)
