"""The startup script as a service of the machine, one at a time: bash, flock and files are real, systemd-run is not."""

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tpu.jobs import job_of
from tpu import startup

SYSTEMD_RUN = """#!/usr/bin/env bash
# Starts its command as systemd does: with an empty environment, as a process of its own, and returns at once.
printf '%s\\n' "$@" >>{asked}
[ ! -e {refused} ] || {{ echo "Failed to start transient service unit: it already exists." >&2; exit 1; }}
while [ $# -gt 0 ]; do
  case "$1" in -p) shift 2 ;; -*) shift ;; *) break ;; esac
done
setsid env -i PATH="$PATH" "$@" >>{output} 2>&1 </dev/null &
"""

WORK = """#!/usr/bin/env bash
# The environment's Python, in which the job works until it is told to end.
echo "working $PLMJAX_NOTE $*" >>{worked}
echo $$ >{pid}
trap 'echo saved >>{worked}; exit 75' TERM
while true; do sleep 0.05; done
"""


class Machine:
    """A virtual machine with systemd, on which the project is installed."""

    def __init__(self, root: Path, bucket: Path) -> None:
        self.home, self.worked, self.pid = root / "plmjax", root / "worked", root / "pid"
        self.asked, self.output, self.refused = root / "asked", root / "output", root / "refused"
        systemd, programs = root / "systemd", root / "programs"
        job = job_of(bucket, package="packages/a.tar.gz", project="", accelerator="v3")
        self.script = startup.render(job)
        python = self.home / "a.venv" / "bin" / "python"
        for folder in (systemd, programs, python.parent, self.home / "a"):
            folder.mkdir(parents=True)
        (self.home / "a" / ".installed").touch()
        places = {name: shlex.quote(str(path)) for name, path in vars(self).items() if isinstance(path, Path)}
        for file, text in ((programs / "systemd-run", SYSTEMD_RUN), (python, WORK)):
            file.write_text(text.format(**places))
            file.chmod(0o755)
        self.settings = {
            "PATH": f"{programs}:/usr/bin:/bin", "PLMJAX_HOME": str(self.home), "PLMJAX_SYSTEMD": str(systemd),
            "JAX_PROCESS_ID": "0", "PLMJAX_NOTE": "two\n'words'", "PLMJAX_PATIENCE": "0", "INVOCATION_ID": "of boot",
        }  # fmt: skip

    def start(self, *command: str) -> tuple[int, str]:
        """Run the script as the guest agent does: (exit code, what it said)."""
        done = subprocess.run(
            command or ("bash", "-c", self.script), env=self.settings, capture_output=True, text=True, timeout=20
        )
        return done.returncode, done.stdout

    def works(self) -> None:
        """Wait until the job works."""
        until(lambda: self.pid.exists() and self.pid.read_text())

    def lines(self) -> list[str]:
        """What the work has said."""
        return self.worked.read_text().splitlines() if self.worked.exists() else []


@pytest.fixture
def machine(tmp_path: Path, bucket: Path):
    made = Machine(tmp_path, bucket)
    yield made
    if made.pid.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(made.pid.read_text()), signal.SIGKILL)


def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_job_is_a_service_that_is_stopped_before_the_network(machine, bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "startup-script").write_text(machine.script)
    assert machine.start("bash", str(tmp_path / "startup-script")) == (0, "")
    machine.works()
    asked = machine.asked.read_text().splitlines()
    assert {"--unit=plmjax-tiny", "--collect"} <= set(asked) and asked[-2:] == ["bash", str(machine.home / "job.sh")]
    assert {
        "KillMode=mixed", "TimeoutStopSec=300", "After=network-online.target", "OOMPolicy=continue",
        "Restart=on-failure", "RestartPreventExitStatus=2 75",
    } <= set(asked)  # fmt: skip
    working = f"-m tpu work tiny --bucket {bucket} --worker 0 --attempt 1 --log {machine.home}/startup.log"
    assert machine.lines() == ["working two", f"'words' {working}"]  # the variables of the machine are there
    mode = stat.S_IMODE((machine.home / "job.sh").stat().st_mode)
    assert mode == 0o600 and "of boot" not in (machine.home / "job.sh").read_text()
    os.kill(int(machine.pid.read_text()), signal.SIGTERM)
    until(lambda: "saved" in machine.lines())


def test_a_second_start_changes_nothing(machine) -> None:
    assert machine.start() == (0, "")
    machine.works()
    log, script = (machine.home / "startup.log").read_text(), (machine.home / "job.sh").stat().st_mtime_ns
    asked, worked = machine.asked.read_text(), machine.lines()
    code, said = machine.start()
    assert code == 0
    assert said.endswith(" a job already runs on this machine (tiny, attempt 1): nothing is changed\n")
    assert (machine.home / "startup.log").read_text() == log and machine.lines() == worked
    assert machine.asked.read_text() == asked and (machine.home / "job.sh").stat().st_mtime_ns == script
    os.kill(int(machine.pid.read_text()), signal.SIGTERM)  # the machine is stopped, and starts again
    until(lambda: "saved" in machine.lines())
    until(lambda: machine.start() == (0, ""))
    until(lambda: sum(line.startswith("working") for line in machine.lines()) == 2)


@pytest.mark.parametrize("refused", [False, True])
def test_a_job_works_in_place_where_no_service_can_be_started(machine, refused: bool) -> None:
    """On Kubernetes there is no systemd; elsewhere it may refuse, which is said."""
    if refused:
        machine.refused.touch()
    else:
        machine.settings["PLMJAX_SYSTEMD"] += ".absent"
    running = subprocess.Popen(["bash", "-c", machine.script], env=machine.settings, stdout=subprocess.PIPE, text=True)
    until(lambda: machine.pid.exists() and machine.pid.read_text().strip() == str(running.pid))
    code, said = machine.start()
    assert code == 0 and "a job already runs on this machine" in said
    running.terminate()
    assert running.wait(timeout=10) == 75
    assert ("systemd-run failed: the job runs in this process" in running.stdout.read()) == refused
