"""Jobs on TPU VMs that exist: gcloud is a stand-in that runs commands here, and Cloud TPU a server of this machine."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import grpc
import pytest

from plmjax.files import storage
from plmjax.training import metrics
from tests.object_store import ObjectStore
from tests.small_runs import SMALL_BERT
from tests.tpu.machines import Workers
from tests.tpu.test_startup import environment, free_port
from tpu import job as jobs
from tpu import machines, startup
from tpu.bucket import Bucket
from tpu.job import Verdict

TINY = "experiments/bert_tiny.py"
pytestmark = pytest.mark.usefixtures("checked_once")
SCRIPT = """
# Instead of an installation and a run: saves for a moment when it is stopped, as plmjax does.
trap 'sleep 0.3; echo saved >>"$PLMJAX_HOME/said"; exit 75' TERM
echo "$NAME $ATTEMPT worker $JAX_PROCESS_ID resource '$RESOURCE'" >>"$PLMJAX_HOME/said"
while :; do sleep 0.05; done
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Four workers whose startup script is SCRIPT after the settings of the job."""
    found = Workers(tmp_path / "vm", 4, sys.executable)
    monkeypatch.setenv("PATH", found.path())
    monkeypatch.setattr(
        startup, "render", lambda job: "\n".join(f"{k}={v!r}" for k, v in startup.settings(job).items()) + SCRIPT
    )
    yield found
    found.kill()


@pytest.fixture
def submit(tpu, service, bucket: Path):
    """Submits a tiny job onto the TPU VM my-tpu, which is a v4-32."""
    service.has_node("my-tpu", accelerator_type="v4-32", accelerator_config={"type_": "V4", "topology": "2x2x4"})

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


@pytest.mark.nightly
def test_a_job_starts_on_all_workers_ends_there_and_goes_on(tpu, submit, service, bucket: Path, workers) -> None:
    code, printed, wrong = submit("--detach")
    assert (code, wrong) == (0, "")
    assert "tiny: started on my-tpu, v4:2x2x4 in us-west4-a, 4 hosts" in printed
    assert said(workers) == [[f"tiny 1 worker {worker} resource ''"] for worker in range(4)]
    assert workers.running() == [0, 1, 2, 3]
    (asked,) = map(json.loads, workers.asked())
    assert asked == [
        "compute", "tpus", "tpu-vm", "ssh", "my-tpu", "--zone", "us-west4-a", "--project", "p", "--worker=all",
        "--quiet", "--command",
    ]  # fmt: skip
    job = jobs.find(str(bucket), "tiny")
    assert (job.tpu_vm, job.accelerator, job.topology, job.queued) == ("my-tpu", "v4", "2x2x4", False)
    assert re.search(r"^state +on my-tpu \(READY\)$", tpu("status", "tiny")[1], re.M)
    code, _, wrong = submit("--detach")  # it runs: nothing is started or changed
    assert code == 2 and "found it on the TPU VM my-tpu; follow it with python -m tpu watch tiny" in wrong
    code, _, wrong = submit("--detach", "--name", "other")
    assert code == 2 and "found tiny running; end it with python -m tpu delete tiny" in wrong
    assert jobs.names(str(bucket)) == ["tiny"] and workers.running() == [0, 1, 2, 3]
    jobs.decide(job, Verdict("failed", "no disk"))
    assert tpu("watch", "tiny")[0] == 1
    for worker in range(4):
        os_end(workers, worker)
    code, _, wrong = submit("--detach")
    assert code == 0, wrong
    assert jobs.find(str(bucket), "tiny").attempt == 2
    code, printed, _ = tpu("delete", "tiny")
    assert code == 0 and "stopping it on my-tpu, which stays" in printed
    assert workers.running() == [] and jobs.names(str(bucket)) == []
    assert all(
        lines[-2:] == [f"tiny 2 worker {worker} resource ''", "saved"] for worker, lines in enumerate(said(workers))
    )
    assert not service.called("CreateQueuedResource") and not service.called("DeleteQueuedResource")
    assert service.nodes


def os_end(workers: Workers, worker: int) -> None:
    """Have a worker's job end by itself."""
    leader = workers.leader(worker)
    os.kill(leader, signal.SIGKILL)
    while workers.leader(worker):
        pass


def test_following_a_vm_requests_and_deletes_nothing(submit, service, bucket: Path, workers) -> None:
    answer, left = service._get_node, [6]

    def ending(request):
        left[0] -= 1
        if left[0] == 3:
            service.refusals["GetNode"] = [(grpc.StatusCode.INTERNAL, "boom")]
        if left[0] == 0:
            jobs.decide(jobs.find(str(bucket), "tiny"), Verdict("done"))
        return answer(request)

    service._get_node = ending
    code, printed, _ = submit()
    assert code == 0 and printed.splitlines()[-1] == "tiny: done"
    assert "ACTIVE" in printed and "InternalServerError (boom)" in printed
    assert {name for name, _ in service.requests} == {"GetNode"}


@pytest.mark.parametrize("state", ["STOPPED", "PREEMPTED", "ABSENT"])
def test_a_vm_that_is_gone_ends_the_job_with_a_sentence(submit, tpu, service, bucket: Path, workers, state) -> None:
    assert submit("--detach")[0] == 0
    (name,) = service.nodes
    if state == "ABSENT":
        del service.nodes[name]
    else:
        service.nodes[name].state = state
    code, printed, _ = tpu("watch", "tiny")
    assert code == 1 and f"the TPU VM my-tpu is {state}; start or create it, and submit again" in printed
    assert tpu("delete", "tiny")[0] == 0  # without the machine there is nothing to stop


def test_a_worker_out_of_reach_starts_nothing(submit, bucket: Path, workers) -> None:
    workers.cut(2)
    code, _, wrong = submit("--detach")
    assert code == 69 and "an answer of all 4 workers of my-tpu by ssh, found 3 (ssh: connect to host 10.0.0.2" in wrong
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
        (
            ("--accelerator", "v5e"),
            "my-tpu",
            "Expected the slice of the TPU VM, v4:2x2x4 (v4-32), found --accelerator v5e",
        ),
        (("--accelerator", "v4", "--topology", "2x2x2"), "my-tpu", "and --topology 2x2x2; leave both out"),
        (("--spot",), "my-tpu", "Expected no --spot with --tpu_vm"),
        (("--slices", 2), "my-tpu", "Expected no --slices with --tpu_vm"),
        (("--data_disk", "d"), "my-tpu", "Expected no --data_disk with --tpu_vm"),
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


def test_a_dry_run_prints_the_commands_and_needs_no_machine(submit, workers) -> None:
    code, printed, _ = submit("--accelerator", "v4-32", "--dry_run")
    assert code == 0 and not workers.asked()
    runs = [line for line in printed.splitlines() if line.startswith("run     gcloud compute tpus tpu-vm ssh my-tpu ")]
    assert len(runs) == 2 and "CreateQueuedResource" not in printed and "DeleteQueuedResource" not in printed


def test_a_worker_of_a_vm_deletes_nothing_at_the_end(submit, service, bucket: Path, workers, tmp_path: Path) -> None:
    from tpu.worker import Worker

    assert submit("--detach")[0] == 0
    job = jobs.find(str(bucket), "tiny")
    jobs.decide(job, Verdict("done"))
    before = len(service.requests)
    assert Worker(job, 1, tmp_path / "log", every=0.01, patience=0).run() == 0
    assert len(service.requests) == before
    assert Bucket(str(bucket)).names("jobs/tiny/1/workers") == ["1.json"]
    assert machines.state(job) == "READY"


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
    for worker in range(4):
        workers.home(worker).mkdir()
    assert submit("--detach")[0] == 0
    home = workers.home(0)
    unit = (tmp_path / "plmjax.service").read_text()
    assert "KillMode=mixed\nTimeoutStopSec=900\n" in unit and "WantedBy=multi-user.target" in unit
    assert re.search(r"^ExecStart=/bin/bash (.*)$", unit, re.M)[1] == str(workers.home(3) / "machine_job.sh")
    assert "NAME='tiny'\n" in (home / "machine_job.sh").read_text() and not workers.running()
    asked = (home / "systemctl").read_text().splitlines()
    assert asked[1:] == ["daemon-reload", "enable --quiet plmjax.service", "restart plmjax.service"]
    assert submit("--detach")[0] == 2  # it runs
    assert tpu("delete", "tiny")[0] == 0
    asked = (home / "systemctl").read_text().splitlines()
    assert asked[-2:] == ["disable --quiet plmjax.service", "stop plmjax*.service"]
    assert not (tmp_path / "plmjax.service").exists() and not (home / "machine_job.sh").exists()


@pytest.mark.slow  # two workers install, and start JAX twice each: minutes
def test_two_workers_train_are_stopped_with_their_state_and_go_on(
    tpu, cloud, tmp_path: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(tmp_path / "vm", 2, sys.executable)
    cloud.has_node("my-tpu", accelerator_type="v4-16")
    with ObjectStore() as store, store.environment():
        store.create("my-bucket")
        for file in (file for file in (small_run / "dataset").rglob("*") if file.is_file()):
            store.put("my-bucket", f"data/{file.relative_to(small_run / 'dataset').as_posix()}", file.read_bytes())
        told = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
        for name, value in environment(tmp_path / "home", **told).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", workers.path())

        def submit(*arguments: object) -> tuple[int, str, str]:
            return tpu(
                "submit", TINY, "--project", "p", *("--zone", "us-west4-a"), "--bucket", "gs://my-bucket", "--name",
                "tiny", "--tpu_vm", "my-tpu", *arguments, "--", *SMALL_BERT, "--data.path", "gs://my-bucket/data",
                "--training.steps", 600, "--checkpoint.every", 50, "--training.evaluate_every", 300,
                "--training.log_every", 50,
            )  # fmt: skip

        try:
            assert submit("--detach")[0] == 0
            job, workdir = jobs.find("gs://my-bucket", "tiny"), storage.path("gs://my-bucket/runs/tiny")
            deadline = time.monotonic() + 300
            while not storage.finished_steps(workdir / "checkpoints") and time.monotonic() < deadline:
                time.sleep(0.5)
            machines.stop(job)
            stopped = storage.finished_steps(workdir / "checkpoints")
            logs = [tpu("logs", "tiny", "--bucket", "gs://my-bucket", "--worker", worker)[1] for worker in range(2)]
            assert stopped and max(stopped) < 600, "\n".join(logs)
            assert not workers.running() and jobs.verdict(job) is None
            assert submit("--detach")[0] == 0
            job = jobs.find("gs://my-bucket", "tiny")
            while (ended := jobs.verdict(job)) is None and time.monotonic() < deadline:
                time.sleep(0.5)
            log = tpu("logs", "tiny", "--bucket", "gs://my-bucket")[1]
            assert job.attempt == 2 and ended == Verdict("done"), log
            logged = metrics.read(workdir / "metrics.jsonl")
            steps = [line["step"] for line in logged if "train/loss" in line]
            assert steps[-1] == 600 and len(set(steps)) == len(steps)
            assert cloud.nodes and not cloud.called("DeleteQueuedResource")
        finally:
            workers.kill()
