"""Cloud TPU and a bucket on this machine, and the program as a user calls it."""

from pathlib import Path

import pytest

from tests.tpu.service import CloudTpu
from tpu import __main__ as program


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch):
    """A fresh Cloud TPU."""
    with CloudTpu() as running:
        monkeypatch.setenv("TPU_API_ENDPOINT", running.address)
        yield running


@pytest.fixture
def service(cloud: CloudTpu, monkeypatch: pytest.MonkeyPatch) -> CloudTpu:
    """The same where waiting costs no time."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
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
