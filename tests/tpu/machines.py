"""A TPU VM on this machine: a stand-in for gcloud that runs what it is told by ssh in a shell for each worker.

What it replaces is the connection alone. A worker finds its number in JAX_PROCESS_ID, and its folder in PLMJAX_HOME.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

GCLOUD = """#!{python}
import json, os, pathlib, subprocess, sys
arguments = sys.argv[1:]
folder = pathlib.Path({folder!r})
with (folder / "asked").open("a") as asked:
    print(json.dumps(arguments[:-1]), file=asked)
assert arguments[:5] == ["compute", "tpus", "tpu-vm", "ssh", arguments[4]] and arguments[-2] == "--command"
out = (folder / "unreachable").read_text().split() if (folder / "unreachable").exists() else []
failed = 0
for worker in range({workers}):
    if str(worker) in out:
        print("ssh: connect to host 10.0.0.%d port 22: Connection timed out" % worker, file=sys.stderr)
        failed = 255
        continue
    told = os.environ | {{"JAX_PROCESS_ID": str(worker), "PLMJAX_HOME": str(folder / f"worker{{worker}}")}}
    failed = subprocess.run(["bash", "-c", arguments[-1]], env=told).returncode or failed
sys.exit(failed)
"""


class Workers:
    """The workers of one TPU VM, whose folders are in `folder`; put `programs` first on PATH."""

    def __init__(self, folder: Path, workers: int, python: str) -> None:
        self.folder, self.workers = folder, workers
        self.programs = folder / "programs"
        self.programs.mkdir(parents=True)
        gcloud = self.programs / "gcloud"
        gcloud.write_text(GCLOUD.format(python=python, folder=str(folder), workers=workers))
        gcloud.chmod(0o755)

    def path(self, environment: Mapping[str, str] = os.environ) -> str:
        """PATH with the stand-in first."""
        return f"{self.programs}:{environment['PATH']}"

    def asked(self) -> list[str]:
        """The calls of gcloud so far, without the command to run."""
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def cut(self, *workers: int) -> None:
        """From now on these workers cannot be reached."""
        (self.folder / "unreachable").write_text(" ".join(map(str, workers)))

    def home(self, worker: int) -> Path:
        """Folder of a worker."""
        return self.folder / f"worker{worker}"

    def running(self) -> list[int]:
        """The workers on which a job runs."""
        return [worker for worker in range(self.workers) if self.leader(worker)]

    def leader(self, worker: int) -> int:
        """Number of the first process of a worker's job; 0 if none runs."""
        file = self.home(worker) / "machine_job.pid"
        if not file.exists():
            return 0
        number = file.read_text().strip()
        state = subprocess.run(["ps", "-o", "stat=", "-p", number], capture_output=True, text=True).stdout
        return int(number) if state and not state.startswith("Z") else 0

    def kill(self) -> None:
        """End what still runs, at the end of a test."""
        for worker in self.running():
            os.killpg(self.leader(worker), signal.SIGKILL)
