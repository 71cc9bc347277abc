"""A host's answer to the exit codes of plmjax; a stand-in for the command ends as it is told."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from plmjax import storage
from tpu import job as jobs
from tpu import submission, worker
from tpu.bucket import Bucket
from tpu.job import Verdict
from tpu.worker import CRASHES, STOPS, Log, Restarts, Worker

pytestmark = pytest.mark.usefixtures("checked_once")

STAND_IN = """
import json, os, pathlib, signal, sys, time
left = pathlib.Path("left")
codes = left.read_text().split()
left.write_text(" ".join(codes[1:]))
code, _, step = codes[0].partition("@")
if sys.argv[1] == "selfcheck" and code in ("0", "1"):
    found = {"verdict": "passed", "wrong": []} if code == "0" else {"verdict": "failed", "wrong": ["rings differs"]}
    output = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found))
workdir = pathlib.Path(sys.argv[sys.argv.index("--workdir") + 1]) if "--workdir" in sys.argv else None
if step:
    (workdir / "checkpoints" / step).mkdir(parents=True, exist_ok=True)
print("run", len(codes), "left, argument", sys.argv[1], flush=True)
if code == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    pathlib.Path("waiting").touch()
    while True:  # a signal that comes just before a sleep does not shorten it
        time.sleep(0.01)
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
if code == "2":
    print("plmjax: Expected a better run, found this one.")
sys.exit(int(code))
"""


@pytest.fixture
def host(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a host of a job whose runs end with these codes, CODE or CODE@STEP of a new checkpoint."""
    prepared = submission.prepare(
        "experiments/bert_tiny.py", (), name="tiny", accelerator="v5e", topology="4x4", slices=1, bucket=str(bucket),
        workdir="", project="p", zone="us-west4-a", spot=True, attempts=5, network="", subnetwork="",
        service_account="",
    )  # fmt: skip
    jobs.save(prepared.job)
    (tmp_path / "plmjax").mkdir()
    (tmp_path / "plmjax" / "__init__.py").touch()
    (tmp_path / "plmjax" / "__main__.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def make(codes: str, number: int = 0, patience: float = 1.0, **changes: object) -> Worker:
        (tmp_path / "left").write_text(codes)
        return Worker(dataclasses.replace(prepared.job, **changes), number, tmp_path / "log", 0.02, patience)

    yield make
    signal.signal(signal.SIGTERM, before)


def left() -> list[str]:
    return Path("left").read_text().split()


@pytest.mark.parametrize(
    ("codes", "state", "runs", "reason"),
    [
        ("0", "done", 1, ""),
        ("75@10 0@20", "done", 2, ""),  # SIGTERM, saved
        ("69 0", "done", 2, ""),  # another host died
        ("-9 -15 0", "done", 3, ""),  # killed
        ("137 143 137 0", "done", 4, ""),  # the same, as a shell says it
        ("1 1 0", "done", 3, ""),  # crashed twice
        ("1@1 1@2 1@3 1@4 0", "done", 5, ""),  # crashed often, but went on between
        ("2 0", "failed", 1, "Expected a better run, found this one."),
        ("1 1 1 0", "failed", 3, "crashed 3 times without a checkpoint, the last time with exit code 1"),
        ("1@5 1@5 1@5 1@5 0", "failed", 3, "crashed 3 times with no checkpoint after step 5"),
        ("1@5 69 1 -9 1 0", "failed", 5, "crashed 3 times with no checkpoint after step 5"),
        (" ".join(["-9"] * 30), "failed", STOPS, "was stopped 20 times without a checkpoint"),
    ],
)
def test_what_is_run_again_and_what_is_not(host, cloud, bucket: Path, codes, state, runs, reason) -> None:
    worker = host(codes, patience=0)
    assert worker.run() == (0 if state == "done" else 2)
    assert len(codes.split()) - len(left()) == runs
    ended = jobs.verdict(worker.job)
    assert ended.state == state and reason in ended.reason
    assert len(cloud.called("DeleteQueuedResource")) == 1
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    lines = [line for line in log.read_text().splitlines() if line.startswith("run ")]
    assert len(lines) == runs and all(line.endswith("argument pretrain") for line in lines)


@pytest.mark.parametrize(
    ("code", "limit", "ended"), [(1, CRASHES, "crashed 3 times"), (75, STOPS, "was stopped 20 times")]
)
def test_limits_count_in_a_row(code: int, limit: int, ended: str) -> None:
    restarts = Restarts()
    for step in (None, 10, 20):
        for _ in range(limit - 1):
            assert restarts.after(code, step, "boom") is None
    assert restarts.after(code, 20, "boom") == Verdict(
        "failed", f"The run {ended} with no checkpoint after step 20, the last time with exit code {code}: boom"
    )


def test_the_first_verdict_stands(host) -> None:
    job, first = host("0").job, Verdict("failed", "Worker 3 has no disk.")
    jobs.decide(job, first)
    jobs.decide(job, Verdict("done"))
    assert jobs.verdict(job) == first


def test_the_verdict_of_another_host_ends_this_one(host, cloud, bucket: Path) -> None:
    worker = host("wait")

    def decide() -> None:
        while not Path("waiting").exists():
            time.sleep(0.01)
        jobs.decide(worker.job, Verdict("failed", "Worker 3 has no disk."))
        Bucket(str(bucket)).write("jobs/tiny/1/workers/0.json", b"{}")

    worker.number = 1
    thread = threading.Thread(target=decide)
    thread.start()
    assert worker.run() == 2
    thread.join()
    assert not cloud.called("DeleteQueuedResource")  # worker 0 has reported, and gives the slice back


def test_a_host_that_is_stopped_saves_and_decides_nothing(host, bucket: Path) -> None:
    worker = host("wait 0")

    def stop() -> None:
        while not Path("waiting").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert worker.run() == 75
    thread.join()
    assert left() == ["0"] and jobs.verdict(worker.job) is None
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    assert "this machine is stopped, plmjax ended with 75" in log.read_text()


def test_a_machine_that_starts_again_after_the_end_runs_nothing(host, cloud) -> None:
    worker = host("0")
    jobs.decide(worker.job, Verdict("done"))
    worker.patience = 0
    assert worker.run() == 0 and left() == ["0"] and cloud.called("DeleteQueuedResource")


def test_any_host_gives_the_slice_back_when_worker_0_does_not(host, cloud) -> None:
    worker = host("2", number=3, patience=0.05)
    assert worker.run() == 2
    assert len(cloud.called("DeleteQueuedResource")) == 1


def test_worker_0_gives_the_slice_back_once_all_others_have_reported(host, cloud, monkeypatch) -> None:
    """One more of the three others whenever it looks: the slice would take them with it."""
    reports, asked = ["1.json", "2.json", "3.json"], []
    seen = [reports[:count] for count in range(4)]
    found = iter(seen)
    monkeypatch.setattr(Worker, "_reported", lambda self: next(found))
    monkeypatch.setattr(worker.Queue, "ask_to_delete", lambda self: asked.append(next(found, "all were seen")))
    assert host("0", patience=60).run() == 0
    assert asked == ["all were seen"]


def test_a_host_that_is_done_comes_back_if_worker_0_is_not(host) -> None:
    worker = host("0 0 0", number=1, patience=0.05)
    once = worker._once

    def then_decided(command: list[str]) -> int:
        code = once(command)
        if left() == ["0"]:
            jobs.decide(worker.job, Verdict("done"))
            worker.bucket.write("jobs/tiny/1/workers/0.json", b"{}")
        return code

    worker._once = then_decided
    assert worker.run() == 0 and left() == ["0"]


def test_a_slice_that_cannot_be_given_back_is_named(host, bucket: Path, cloud) -> None:
    import grpc

    cloud.refusals["DeleteQueuedResource"] = [(grpc.StatusCode.PERMISSION_DENIED, "denied")]
    assert host("0", patience=0).run() == 0
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    assert "continues to cost money" in log.read_text() and "roles/tpu.admin" in log.read_text()


def test_a_bucket_that_does_not_answer_ends_nothing(host, cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = host("69 0", patience=0)
    answers = iter([False, False, True, False])
    read = Bucket.read

    def sometimes(self: Bucket, name: str) -> bytes | None:
        if next(answers, True):
            return read(self, name)
        raise OSError("connection reset")

    monkeypatch.setattr(Bucket, "read", sometimes)
    assert worker.run() == 0 and left() == []
    assert "the bucket did not answer: connection reset" in worker.log.path.read_text()


@pytest.mark.parametrize(("size", "count"), [(100, 13), (1, 50)])
def test_a_long_log_is_copied_in_parts_that_join_to_it(tmp_path: Path, bucket: Path, size: int, count: int) -> None:
    """Parts have four lines each, or one line each, as long as the one before it."""
    log = Log(tmp_path / "log", Bucket(str(bucket)), "logs/0")
    log.PART = size
    for number in range(50):
        log.add(f"line {number}")
        log.upload()
    parts = Bucket(str(bucket)).names("logs/0")
    assert len(parts) == count
    assert b"".join((bucket / "logs" / "0" / part).read_bytes() for part in parts) == log.path.read_bytes()
    assert log.last_line().endswith("line 49")


def test_a_checkpoint_that_is_still_being_written_to_a_bucket_is_no_progress(object_store):
    object_store.create("progress")
    folder = storage.path("gs://progress/run/checkpoints/3")
    storage.write(folder / "manifest.json", "{}")
    assert worker.checkpoint("gs://progress/run") is None
    storage.write(folder / "commit_success.txt", "")
    assert worker.checkpoint("gs://progress/run") == 3


FAILED = "The selfcheck found rings differs; see {bucket}/jobs/tiny/selfcheck/1.json."


@pytest.mark.parametrize(
    ("codes", "state", "ran", "reason"),
    [
        ("0 0", "done", "selfcheck pretrain", ""),
        ("69 0 75@1 0", "done", "selfcheck selfcheck pretrain pretrain", ""),  # a host that came late
        ("3 -9 0 0", "done", "selfcheck selfcheck selfcheck pretrain", ""),  # it crashed, and was killed
        ("1 0", "failed", "selfcheck", FAILED),
        ("2 0", "failed", "selfcheck", "plmjax: Expected a better run, found this one."),
    ],
)
def test_a_run_begins_when_the_selfcheck_of_its_slice_has_passed(
    host, cloud, bucket: Path, codes: str, state: str, ran: str, reason: str
) -> None:
    worker = host(codes, patience=0, selfcheck=True)
    worker.run()
    ended = jobs.verdict(worker.job)
    assert ended.state == state and reason.format(bucket=bucket) in ended.reason
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    lines = [line for line in log.read_text().splitlines() if line.startswith("run ")]
    assert [line.split()[-1] for line in lines] == ran.split()
    assert state == "done" or reason.format(bucket=bucket) in log.read_text()


def test_a_machine_that_starts_again_does_not_check_a_slice_twice(host, cloud) -> None:
    """The other hosts are in their run, and would wait for it."""
    assert host("0 0", patience=0, selfcheck=True, attempt=3).run() == 0
    worker = host("0", number=1, selfcheck=True, attempt=3)
    worker.bucket.remove(f"{worker.job.folder}")
    worker.number = 0
    assert worker.run() == 0 and left() == []


def test_a_job_with_a_selfcheck_is_read_as_it_was_saved(host) -> None:
    job = host("0", selfcheck=True).job
    jobs.save(job)
    assert jobs.find(job.bucket, job.name) == job
    assert job.selfcheck_command() == [
        *("plmjax", "selfcheck", "--output", f"{job.bucket}/jobs/tiny/selfcheck/1.json", "--join_seconds", "1800")
    ]
