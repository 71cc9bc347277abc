"""Jobs on TPU VMs that exist. Cloud TPU is a server of this machine, gcloud a stand-in that runs commands here.

A worker finds its number in JAX_PROCESS_ID, and its folder in PLMJAX_HOME.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from tests.tpu.jobs import TINY
from tpu import job as jobs
from tpu import startup
from tpu.job import Verdict

pytestmark = pytest.mark.usefixtures("checked_once")
SCRIPT = """
# Instead of an installation and a run: saves for a moment when it is stopped, as plmjax does.
trap 'sleep 0.3; echo saved >>"$PLMJAX_HOME/said"; exit 75' TERM
echo "$NAME $ATTEMPT worker $JAX_PROCESS_ID resource '$RESOURCE'" >>"$PLMJAX_HOME/said"
while :; do sleep 0.05; done
"""


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

    def asked(self) -> list[str]:
        """The calls of gcloud so far, without the command to run."""
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

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


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two workers whose startup script is SCRIPT after the settings of the job."""
    found = Workers(tmp_path / "vm", 2, sys.executable)
    monkeypatch.setenv("PATH", f"{found.programs}:{os.environ['PATH']}")
    monkeypatch.setattr(
        startup, "render", lambda job: "\n".join(f"{k}={v!r}" for k, v in startup.settings(job).items()) + SCRIPT
    )
    yield found
    found.kill()


@pytest.fixture
def submit(tpu, service, bucket: Path):
    """Submits a tiny job onto the TPU VM my-tpu, which is a v4-16."""
    service.has_node("my-tpu", accelerator_type="v4-16", accelerator_config={"type_": "V4", "topology": "2x2x2"})

    def run(*arguments: object, vm: str = "my-tpu") -> tuple[int, str, str]:
        return tpu(
            "submit", TINY, "--project", "p", "--zone", "us-west4-a", "--bucket", bucket, "--name", "tiny", "--tpu_vm",
            vm, *arguments,
        )  # fmt: skip

    return run


def said(workers: Workers) -> list[list[str]]:
    """Return the output of the script on each worker, once it has begun on all."""
    files = [workers.home(worker) / "said" for worker in range(workers.workers)]
    end = time.monotonic() + 10
    while not all(file.exists() for file in files) and time.monotonic() < end:
        pass  # time.sleep costs no time in these tests
    return [file.read_text().splitlines() for file in files]


def test_a_job_starts_on_all_workers_ends_there_and_goes_on(tpu, submit, service, bucket: Path, workers) -> None:
    code, printed, _ = submit("--accelerator", "v4-16", "--dry_run")
    assert code == 0 and not workers.asked() and "QueuedResource" not in printed
    assert printed.count("run     gcloud compute tpus tpu-vm ssh my-tpu ") == 2
    code, printed, wrong = submit("--detach")
    assert (code, wrong) == (0, "")
    assert "tiny: started on my-tpu, v4:2x2x2 in us-west4-a, 2 hosts" in printed
    assert said(workers) == [[f"tiny 1 worker {worker} resource ''"] for worker in range(2)]
    assert workers.running() == [0, 1]
    (asked,) = map(json.loads, workers.asked())
    assert asked == [
        "compute", "tpus", "tpu-vm", "ssh", "my-tpu", "--zone", "us-west4-a", "--project", "p", "--worker=all",
        "--quiet", "--command",
    ]  # fmt: skip
    job = jobs.find(str(bucket), "tiny")
    assert (job.tpu_vm, job.accelerator, job.topology, job.queued) == ("my-tpu", "v4", "2x2x2", False)
    assert re.search(r"^state +on my-tpu \(READY\)$", tpu("status", "tiny")[1], re.M)
    code, _, wrong = submit("--detach")  # it runs: nothing is started or changed
    assert code == 2 and "found it on the TPU VM my-tpu; follow it with python -m tpu watch tiny" in wrong
    code, _, wrong = submit("--detach", "--name", "other")
    assert code == 2 and "found tiny running; end it with python -m tpu delete tiny" in wrong
    assert jobs.names(str(bucket)) == ["tiny"] and workers.running() == [0, 1]
    jobs.decide(job, Verdict("failed", "no disk"))
    assert tpu("watch", "tiny")[0] == 1
    for worker in range(2):
        os.kill(workers.leader(worker), signal.SIGKILL)
        while workers.leader(worker):
            pass
    code, _, wrong = submit("--detach")
    assert code == 0, wrong
    assert jobs.find(str(bucket), "tiny").attempt == 2
    code, printed, _ = tpu("delete", "tiny")
    assert code == 0 and "stopping it on my-tpu, which stays" in printed
    assert workers.running() == [] and jobs.names(str(bucket)) == []
    for worker, lines in enumerate(said(workers)):
        assert lines[-2:] == [f"tiny 2 worker {worker} resource ''", "saved"]
    assert not service.called("CreateQueuedResource") and not service.called("DeleteQueuedResource")
    assert service.nodes


def test_a_vm_that_is_gone_ends_the_job_with_a_sentence(submit, tpu, service, bucket: Path, workers) -> None:
    for state in ("STOPPED", "ABSENT"):
        assert submit("--detach")[0] == 0
        (name,) = service.nodes
        node = service.nodes[name] if state == "STOPPED" else service.nodes.pop(name)
        node.state = "STOPPED"
        service.refusals["GetNode"] = [(grpc.StatusCode.INTERNAL, "boom")]  # it is asked again
        code, printed, _ = tpu("watch", "tiny")
        assert code == 1 and f"the TPU VM my-tpu is {state}; start or create it, and submit again" in printed
        assert "InternalServerError (boom)" in printed and {name for name, _ in service.requests} == {"GetNode"}
        assert tpu("delete", "tiny")[0] == 0  # without the machine there is nothing to stop
        workers.kill()
        node.state, service.nodes[name] = "READY", node


def test_a_worker_out_of_reach_starts_nothing(submit, bucket: Path, workers) -> None:
    (workers.folder / "unreachable").write_text("1")
    code, _, wrong = submit("--detach")
    assert code == 69 and "an answer of all 2 workers of my-tpu by ssh, found 1 (ssh: connect to host 10.0.0.1" in wrong
    assert "Some workers may have started" in wrong  # the same worker cannot be stopped either
    assert workers.running() == [] and jobs.names(str(bucket)) == []


def test_mistakes_of_a_vm_are_sentences_and_nothing_starts(
    submit, service, bucket: Path, workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.has_node("old", "STOPPED", accelerator_type="v3-32")
    service.has_node("new", accelerator_type="v9-32")
    service.has_node("plain")
    for arguments, vm, sentence in (
        ((), "desk", "Expected a TPU VM named desk in us-west4-a of p, found none"),
        ((), "old", "Expected the TPU VM old to be READY, found it STOPPED; start it with gcloud compute tpus tpu-vm"),
        ((), "new", "Expected Cloud's name of a slice, such as v4-32 or v5litepod-16, found 'v9-32'"),
        ((), "plain", "Expected the accelerator of the TPU VM plain"),
        (("--accelerator", "v5e"), "my-tpu", "found --accelerator v5e and --topology of it; leave both out"),
        (("--accelerator", "v4", "--topology", "2x2x4"), "my-tpu", "and --topology 2x2x4; leave both out"),
        (("--slices", 2), "my-tpu", "Expected no --slices with --tpu_vm"),
        (("--zone", "us-east1-d"), "my-tpu", "Expected one --zone with --tpu_vm"),
        (("--dry_run",), "my-tpu", "Expected --accelerator for a dry run with --tpu_vm"),
    ):
        code, printed, wrong = submit(*arguments, vm=vm)
        assert code == 2 and not printed and sentence in wrong and "\n" not in wrong, wrong
    service.refusals["GetNode"] = [(grpc.StatusCode.PERMISSION_DENIED, "tpu.nodes.get denied")]
    code, _, wrong = submit()
    assert code == 2 and "PermissionDenied (tpu.nodes.get denied)" in wrong
    monkeypatch.setenv("PATH", "/usr/bin/none")
    monkeypatch.setattr("tpu.package._tracked_files", lambda root: ["setup.py", TINY])
    code, _, wrong = submit()
    assert code == 2 and "Expected gcloud, which opens the connections to a TPU VM, found none" in wrong
    assert jobs.names(str(bucket)) == [] and not workers.asked() and not service.called("CreateQueuedResource")


SYSTEMCTL = """#!/usr/bin/env bash
echo "$*" >>"$PLMJAX_HOME/systemctl"
case "$1" in
  list-units) [ ! -e "$PLMJAX_HOME/active" ] || echo "plmjax-tiny.service loaded active running" ;;
  restart) touch "$PLMJAX_HOME/active" ;;
  stop) rm -f "$PLMJAX_HOME/active" ;;
esac
"""


def test_where_there_is_systemd_a_job_is_a_service_that_starts_with_the_machine(
    submit, tpu, workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workers.programs / "systemctl").write_text(SYSTEMCTL)
    (workers.programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PLMJAX_SYSTEMD", str(tmp_path))
    monkeypatch.setenv("PLMJAX_UNITS", str(tmp_path))
    for worker in range(2):
        workers.home(worker).mkdir()
    assert submit("--detach")[0] == 0
    home = workers.home(0)
    unit = (tmp_path / "plmjax.service").read_text()
    assert "KillMode=mixed\nTimeoutStopSec=900\n" in unit and "WantedBy=multi-user.target" in unit
    assert re.search(r"^ExecStart=/bin/bash (.*)$", unit, re.M)[1] == str(workers.home(1) / "machine_job.sh")
    assert "NAME='tiny'\n" in (home / "machine_job.sh").read_text() and not workers.running()
    asked = (home / "systemctl").read_text().splitlines()
    assert asked[1:] == ["daemon-reload", "enable --quiet plmjax.service", "restart plmjax.service"]
    assert submit("--detach")[0] == 2  # it runs
    assert tpu("delete", "tiny")[0] == 0
    asked = (home / "systemctl").read_text().splitlines()
    assert asked[-2:] == ["disable --quiet plmjax.service", "stop plmjax*.service"]
    assert not (tmp_path / "plmjax.service").exists() and not (home / "machine_job.sh").exists()
