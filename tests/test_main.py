"""The program in processes of its own: what it finds in the environment, and how a signal ends it at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax.errors import SAVED
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT
from tests.xla_flags import cpu_flags

OURS = ("JAX_", "TF_", "TPU_", "PYTHONWARNINGS")
"""Prefixes of the variables that the command line sets, and that the tests have set already."""


def bare(**variables: object) -> dict[str, str]:
    """The environment of somebody who has set nothing."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return own | {"PYTHONPATH": str(ROOT)} | {name: str(value) for name, value in variables.items()}


@pytest.mark.nightly
def test_programs_are_compiled_once_and_json_is_all_that_is_printed(small_run: Path, tmp_path: Path) -> None:
    """libtpu is installed beside the tests: JAX would start it, and say at length that it finds no TPU."""
    programs, found, entries = tmp_path / "plmjax" / "compilation", [], []
    for _ in range(2):
        command = [sys.executable, "-m", "plmjax", "evaluate", str(small_run), "--json"]
        environment = bare(XDG_CACHE_HOME=tmp_path, XLA_FLAGS=cpu_flags(1))
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(json.loads(done.stdout))
        entries.append(sorted(path.name for path in programs.iterdir()))
    assert entries[0] and entries[0] == entries[1]
    assert found[0] == found[1]


def test_a_warning_that_python_shows_to_users_fails_its_test() -> None:
    """So the tests of every command hold that it prints none; pyproject.toml says which kinds are hidden by default."""
    with pytest.raises(UserWarning, match="of any library"):
        warnings.warn("of any library", stacklevel=1)
    warnings.warn("hidden by default", DeprecationWarning, stacklevel=1)


def stopped(number: signal.Signals, *command: object, when: Callable[[subprocess.Popen], bool], **variables) -> str:
    """The last words of a command that got a signal, as a terminal sends it, at some moment."""
    said = variables.pop("said")
    with said.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "plmjax", *map(str, command)], cwd=ROOT, env=bare(**variables), stderr=errors,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + 300
    while not when(process):
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.01)
    os.killpg(process.pid, number)
    assert process.wait(300) == {signal.SIGTERM: SAVED, signal.SIGINT: 130}[number], said.read_text()
    return said.read_text()


def catches(process: subprocess.Popen) -> bool:
    """Tell if a process handles SIGTERM, which Python does not by itself: its first line has been run."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def workers(process: subprocess.Popen) -> list[Path]:
    """The worker processes of a session that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            ours = int(group) == process.pid and state != "Z" and folder.name != str(process.pid)
            if ours and b"--multiprocessing-fork" in (folder / "cmdline").read_bytes():
                found.append(folder)
        except OSError:
            pass
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
class TestSignals:
    def test_while_it_imports(self, number: signal.Signals, tmp_path: Path) -> None:
        said = stopped(number, "pretrain", "experiments/bert_tiny.py", when=catches, said=tmp_path / "said")
        assert said == f"plmjax: Stopped by {number.name} with nothing new to save; run the same command again.\n"

    @pytest.mark.nightly  # by day a signal ends the imports, and a watched process of tests/parallel/test_stopping.py
    def test_while_workers_prepare_text(
        self, number: signal.Signals, small_run: Path, prose: Path, tmp_path: Path
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text("\n\n".join([prose.read_text()] * 20))
        seen: list[Path] = []

        def preparing(process: subprocess.Popen) -> bool:
            seen[:] = workers(process)
            return bool(seen)

        said = stopped(
            number, "prepare", "--input", text, "--tokenizer", small_run / "tokenizer", "--output", tmp_path / "data",
            "--processes", 2, when=preparing, said=tmp_path / "said",
        )  # fmt: skip
        assert said == f"plmjax: Stopped by {number.name} with nothing new to save; run the same command again.\n"
        deadline = time.monotonic() + 100
        while any((folder / "stat").exists() and "Z" not in (folder / "stat").read_text() for folder in seen):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @pytest.mark.nightly
    @pytest.mark.parametrize("moment", ["Finished tracing initialize", "Compiling jit(initialize)"])
    def test_while_it_traces_and_compiles(
        self, number: signal.Signals, moment: str, small_run: Path, tmp_path: Path
    ) -> None:
        said = tmp_path / "said"
        last = stopped(
            number, "pretrain", "experiments/bert_tiny.py", "--workdir", tmp_path / "run", *SMALL_BERT, "--data.path",
            small_run / "dataset", when=lambda process: moment in said.read_text(), said=said,
            JAX_LOG_COMPILES=1, JAX_PLATFORMS="cpu", XDG_CACHE_HOME=tmp_path,
        ).splitlines()  # fmt: skip
        assert last[-1] == f"plmjax: Stopped by {number.name} with nothing new to save; run the same command again."
        assert not any("Traceback" in line for line in last)
