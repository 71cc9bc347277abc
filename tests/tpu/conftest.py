"""Cloud TPU and a bucket on this machine, and the program as a user calls it."""

import functools
from collections.abc import Collection
from pathlib import Path

import pytest

from plmjax.experiment import Experiment
from plmjax.runs import checks
from tests.tpu.jobs import TINY
from tests.tpu.service import CloudTpu
from tpu import __main__ as program
from tpu import package, versions

check = checks.on_devices
passed: set[tuple[str, int, int]] = set()


@functools.cache
def pack(names: tuple[str, ...], root: Path, made: tuple[tuple[str, bytes], ...]) -> tuple[str, bytes]:
    return _pack(names, root, dict(made))


@functools.cache
def select(experiment: str, include: tuple[str, ...]) -> package.Selection:
    return _select(package.ROOT, experiment, include)


_pack, _select, constraints = package.pack, package.select, functools.cache(versions.constraints)


@pytest.fixture
def checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment that passed its checks is not traced again for as many devices, nor the project read again.

    For tests of what follows a submission, each of which has one; test_submit.py and test_docs.py have all of it.
    """

    def on_devices(run: Experiment, devices: int, slices: int = 1) -> None:
        if (repr(run), devices, slices) not in passed:
            check(run, devices, slices)
            passed.add((repr(run), devices, slices))

    def selected(root: Path, experiment: str = "", include: Collection[str] = ()) -> package.Selection:
        own = root == package.ROOT
        return select(experiment, tuple(include)) if own else _select(root, experiment, include)

    monkeypatch.setattr(checks, "on_devices", on_devices)
    monkeypatch.setattr(package, "select", selected)
    monkeypatch.setattr(versions, "constraints", constraints)
    monkeypatch.setattr(package, "pack", lambda names, root, made: pack(tuple(names), root, (*made.items(),)))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch):
    """A fresh Cloud TPU."""
    with CloudTpu() as running:
        monkeypatch.setenv("TPU_API_ENDPOINT", running.address)
        yield running


@pytest.fixture
def service(cloud: CloudTpu, monkeypatch: pytest.MonkeyPatch) -> CloudTpu:
    """The same where waiting costs no time: a sleep only moves the clock."""
    import time

    slept = [0.0]
    for name in ("time", "monotonic"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + slept[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.__setitem__(0, slept[0] + seconds))
    return cloud


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for a bucket."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    monkeypatch.setenv("PLMJAX_BUCKET", str(folder))
    return folder


@pytest.fixture
def tpu(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Runs `python -m tpu ...` here: (exit code, what it printed, what it said of mistakes)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["tpu", *map(str, arguments)])
        capsys.readouterr()
        try:
            program.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err.strip()

    return run


@pytest.fixture
def submit(tpu, service, bucket: Path):
    """Submits a tiny job and follows it: (exit code, what it printed, what it said of mistakes)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        return tpu(
            "submit", TINY, "--project", "p", "--zone", "us-west4-a", "--accelerator", "v5e", "--topology", "4x4",
            "--bucket", bucket, "--name", "tiny", *arguments,
        )  # fmt: skip

    return run
