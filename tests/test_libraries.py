"""The versions that hosts compare at the start, and messages of libraries in a program of the user."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax import __version__, libraries
from plmjax.parallel.host_registry import difference
from tests.paths import ROOT


def test_a_library_that_differs_between_hosts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = libraries.versions()
    assert here["the version of plmjax"] == __version__
    assert (here["the version of jax"], here["the version of numpy"]) == (jax.__version__, np.__version__)
    version = importlib.metadata.version

    def repaired(name: str) -> str:
        if name == "libtpu":
            raise importlib.metadata.PackageNotFoundError
        return "99.1" if name == "optax" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", repaired)
    there = libraries.versions()
    assert there["the version of libtpu"] == "none"
    there["the version of libtpu"] = here["the version of libtpu"]
    found = difference(json.dumps(here), json.dumps(there), 3)
    assert found == f"the version of optax = 99.1 on host 3 and {version('optax')} on host 0"


@pytest.mark.parametrize("first", ["jax", pytest.param("plmjax", marks=pytest.mark.nightly)])
def test_a_program_shows_its_own_messages_and_none_of_libtpu_and_orbax(
    first: str, decoder_run: Path, tmp_path: Path
) -> None:
    """libtpu, installed for plans, prints a page where there is no TPU, and Orbax warns of files that it looks for."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import {first}\nimport jax\nfrom absl import logging\n"
        "from plmjax.training.checkpoints import checkpoints\n"
        f"checkpoints.load_parameters({str(decoder_run)!r})\n"
        "logging.warning('of the program')\nprint(jax.default_backend())\n"
    )
    without = ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TF_CPP_MIN_LOG_LEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cpu\n" and done.stderr == "WARNING:absl:of the program\n"
