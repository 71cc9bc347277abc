"""Files that one process of a parallel run makes, and the others take."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, once for all processes of a run; read it, and change nothing in it.

    The process that comes first makes it, and the others wait. If `make` fails, each of them fails by itself.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once" / name
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def copied(factory: pytest.TempPathFactory, made: Path) -> Path:
    """A copy for this process alone, which commands may write into."""
    return Path(shutil.copytree(made, factory.mktemp(made.name) / made.name))
