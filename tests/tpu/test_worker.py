"""A host's answer to the exit codes of plmjax; a stand-in for the command ends as it is told."""

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tpu.jobs import job_of
from tests.tpu.metadata import MetadataServer
from tpu import crashes, events
from tpu import job as jobs
from tpu import worker as worker_module
from tpu.bucket import Bucket
from tpu.job import Verdict
from tpu.worker import Log, Worker

STAND_IN = """
import json, os, pathlib, signal, subprocess, sys, time
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
if code == "orphan":
    pathlib.Path("orphan").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
    sys.exit(1)
if "TPU_LOG_DIR" in os.environ:
    pathlib.Path(os.environ["TPU_LOG_DIR"], "tpu_driver.INFO").write_text(f"the end of {len(codes)}")
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
    job = job_of(bucket, attempts=5)
    jobs.save(job)
    (tmp_path / "plmjax").mkdir()
    (tmp_path / "plmjax" / "__init__.py").touch()
    (tmp_path / "plmjax" / "__main__.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # no notices

    def make(codes: str, number: int = 0, patience: float = 1.0, every: float = 0.02, **changes: object) -> Worker:
        (tmp_path / "left").write_text(codes)
        changed = dataclasses.replace(job, **changes)
        return Worker(changed, number, tmp_path / "log", every=every, patience=patience)

    yield make
    signal.signal(signal.SIGTERM, before)


def left() -> list[str]:
    return Path("left").read_text().split()


def logged(bucket: Path) -> str:
    """The log of worker 0 in the bucket."""
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    return log.read_text()


def wait_for(reached: Callable[[], object]) -> None:
    while not reached():
        time.sleep(0.01)


def when_it_waits(do: Callable[[], object]) -> threading.Thread:
    """Does something in a thread as soon as the stand-in waits for a signal."""

    def wait() -> None:
        wait_for(Path("waiting").exists)
        Path("waiting").unlink()
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


class Clock:
    """The time of a worker that need not wait: a sleep moves it, and an `every` of 10 seconds takes none."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []
        self.strftime, self.gmtime, self.time = time.strftime, time.gmtime, time.time

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(worker_module, "time", found)
    return found


@pytest.mark.parametrize(
    ("codes", "state", "runs", "reason"),
    [
        ("75@10 0@20", "done", 2, ""),  # SIGTERM, saved
        ("69 -9 143 0", "done", 4, ""),  # another host died; killed, and the same as a shell says it
        ("1 1 1@1 1 1 1@2 0", "done", 7, ""),  # crashed quickly and often, but went on between
        ("2 0", "failed", 1, "Expected a better run, found this one."),
    ],
)
def test_what_is_run_again_and_what_is_not(host, cloud, clock, bucket: Path, codes, state, runs, reason) -> None:
    worker = host(codes, patience=0, every=10)
    assert worker.run() == (0 if state == "done" else 2)
    assert len(codes.split()) - len(left()) == runs
    ended = jobs.verdict(worker.job)
    assert ended.state == state and reason in ended.reason
    assert len(cloud.called("DeleteQueuedResource")) == 1
    lines = [line for line in logged(bucket).splitlines() if line.startswith("run ")]
    assert len(lines) == runs and all(line.endswith("argument pretrain") for line in lines)
    assert max(clock.slept, default=0) <= 1  # a stop is noticed at once


def test_the_verdict_of_another_host_ends_this_one(host, cloud, bucket: Path) -> None:
    worker = host("wait")

    def decide() -> None:
        jobs.decide(worker.job, Verdict("failed", "Worker 3 has no disk."))
        Bucket(str(bucket)).write("jobs/tiny/1/workers/0.json", b"{}")

    worker.number = 1
    thread = when_it_waits(decide)
    assert worker.run() == 2
    thread.join()
    jobs.decide(worker.job, Verdict("done"))
    assert jobs.verdict(worker.job).state == "failed"  # the first verdict stands
    assert not cloud.called("DeleteQueuedResource")  # worker 0 has reported, and gives the slice back


def test_a_machine_that_starts_again_after_the_end_runs_nothing(host, cloud) -> None:
    worker = host("0")
    jobs.decide(worker.job, Verdict("done"))
    worker.patience = 0
    assert worker.run() == 0 and left() == ["0"] and cloud.called("DeleteQueuedResource")


def test_any_host_gives_the_slice_back_when_worker_0_does_not(host, cloud) -> None:
    worker = host("2", number=3, patience=0.05)
    assert worker.run() == 2
    assert len(cloud.called("DeleteQueuedResource")) == 1


def test_worker_0_gives_the_slice_back_once_all_others_have_reported(host, cloud) -> None:
    """The slice would take them with it."""
    worker, asked = host("0", patience=60), []
    for number in (1, 2):
        worker.bucket.write(f"jobs/tiny/1/workers/{number}.json", b"{}")

    def report() -> None:
        asked.extend(cloud.called("DeleteQueuedResource"))
        worker.bucket.write("jobs/tiny/1/workers/3.json", b"{}")

    late = threading.Timer(0.5, report)
    threading.Thread(target=lambda: (wait_for(lambda: jobs.verdict(worker.job)), late.start())).start()
    assert worker.run() == 0
    late.join()
    assert not asked and len(cloud.called("DeleteQueuedResource")) == 1


def test_a_host_that_is_done_comes_back_if_worker_0_is_not(host) -> None:
    worker = host("0 0 0", number=1, patience=0.05)
    once = worker._once

    def then_decided() -> None:
        once()
        if left() == ["0"]:
            jobs.decide(worker.job, Verdict("done"))
            worker.bucket.write("jobs/tiny/1/workers/0.json", b"{}")

    worker._once = then_decided
    assert worker.run() == 0 and left() == ["0"]


def test_a_slice_that_cannot_be_given_back_is_named_and_asked_for_again(host, bucket: Path, cloud, clock) -> None:
    import grpc

    denied, busy = (grpc.StatusCode.PERMISSION_DENIED, "denied"), (grpc.StatusCode.INTERNAL, "busy")
    cloud.refusals["DeleteQueuedResource"] = [denied, denied, busy]
    assert host("0", patience=0).run() == 0
    assert len(cloud.called("DeleteQueuedResource")) == 4 and clock.now > 3
    assert "continues to cost money" in logged(bucket) and "roles/tpu.admin" in logged(bucket)


def test_a_long_log_is_copied_in_parts_that_join_to_it(tmp_path: Path, bucket: Path) -> None:
    log = Log(tmp_path / "log", Bucket(str(bucket)), "logs/0")
    log.PART = 100  # four lines
    for number in range(50):
        log.add(f"line {number}")
        log.upload()
    parts = Bucket(str(bucket)).names("logs/0")
    assert len(parts) == 13
    assert b"".join((bucket / "logs" / "0" / part).read_bytes() for part in parts) == log.path.read_bytes()
    assert log.last_line().endswith("line 49")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    """The metadata server of the machine."""
    with MetadataServer() as running:
        monkeypatch.setenv("GCE_METADATA_HOST", running.address)
        monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
        monkeypatch.setattr("tpu.notices.EVERY", 0.01)
        yield running


def test_a_preempted_machine_saves_and_stops(host, cloud, server) -> None:
    worker = host("wait 0")
    thread = when_it_waits(lambda: server.values.update(preempted="TRUE"))
    assert worker.run() == 75
    thread.join()
    assert left() == ["0"] and jobs.verdict(worker.job) is None
    assert "this machine is stopped by its preemption\n" in worker.log.path.read_text()


def test_a_machine_saves_before_its_maintenance_and_goes_on_at_once(host, cloud, clock, server) -> None:
    worker = host("wait wait 0", patience=0, every=10)

    def announced() -> None:
        server.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        when_it_waits(lambda: server.values.update({"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}))

    when_it_waits(announced)
    assert worker.run() == 0
    log = worker.log.path.read_text()
    assert log.count("saved before the maintenance, newest checkpoint None: starting it again") == 2
    assert left() == [] and clock.now == 0


def test_worker_0_records_when_the_command_starts_and_ends(host, cloud, clock) -> None:
    worker = host("69 1@20 0", patience=0, every=10)
    assert worker.run() == 0
    found = [events.contents(worker.job, one) for one in events.events(worker.job)]
    assert [event["kind"] for event in found] == ["started", "ended"] * 3
    assert [(event["code"], event["step"]) for event in found[1::2]] == [(69, None), (1, 20), (0, 20)]
    assert {(event["worker"], event["attempt"]) for event in found} == {(0, 1)}
    other = host("2", number=1, patience=0)
    jobs_folder = Path(other.job.bucket) / "jobs" / "tiny"
    (jobs_folder / "1" / "verdict.json").unlink()
    assert other.run() == 2 and len(events.events(other.job)) == 6


def test_the_last_words_of_a_crash_reach_the_bucket(host, cloud, clock, bucket: Path) -> None:
    worker = host("75 69 1 1 -9 0", patience=0, every=10)
    assert worker.run() == 0
    kept = sorted((bucket / "jobs" / "tiny" / "1" / "crashes" / "0").iterdir())
    assert [(folder / "tpu_driver.INFO").read_text() for folder in kept] == [f"the end of {n}" for n in (5, 4, 3, 2)]
    log = worker.log.path.read_text()
    assert f"the last words of the run are in {bucket}/jobs/tiny/1/crashes/0/{kept[0].name}: tpu_driver.INFO" in log
    assert len(list((worker.log.path.parent / "tpu_logs").iterdir())) == 3


def test_nothing_of_a_command_is_left_when_it_has_ended(host, cloud, clock) -> None:
    assert host("orphan 0", patience=0, every=10).run() == 0
    stat = Path(f"/proc/{Path('orphan').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_stop_and_a_verdict_are_seen_while_it_waits(host, cloud, clock) -> None:
    stopped = host("1 0", every=10)
    clock.sleep = lambda seconds: os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.run() == 75 and left() == ["0"]
    failed = host("1 0", patience=0, every=10)
    begin = clock.now

    def sleep(seconds: float) -> None:
        clock.now += seconds
        jobs.decide(failed.job, Verdict("failed", "Worker 3 has no disk."))

    clock.sleep = sleep
    assert failed.run() == 2 and left() == ["0"] and clock.now - begin <= 11


def test_a_job_goes_on_after_an_outage_of_its_bucket(host, cloud, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day its failure is decided, which the bucket does not take either; when it does, the run goes on."""
    worker, hours = host("", patience=0, every=10), 30
    (Path(worker.job.workdir) / "checkpoints" / "20").mkdir(parents=True)
    worker.log.path.touch()
    # A process takes long to start, some hundred times.
    worker._code = lambda command, folder: 69 if clock.now < hours * 3600 else 0

    def out(self: Bucket, *arguments: object) -> None:
        if 60 < clock.now < hours * 3600:
            raise OSError("503 Service Unavailable")

    for name in ("read", "write", "names"):
        call = getattr(Bucket, name)
        monkeypatch.setattr(Bucket, name, lambda *all, call=call: out(*all) or call(*all))
    newest = worker_module.checkpoint
    monkeypatch.setattr(worker_module, "checkpoint", lambda workdir: out(worker.bucket) or newest(workdir))
    assert worker.run() == 0
    assert jobs.verdict(worker.job) == Verdict("done") and clock.now >= hours * 3600
    assert worker.log.path.read_text().count("503 Service Unavailable") == 1


FAILED = "The selfcheck found rings differs; see {bucket}/jobs/tiny/selfcheck/1.json."


@pytest.mark.parametrize(
    ("codes", "state", "ran", "reason"),
    [
        ("69 0 75@1 0", "done", "selfcheck selfcheck pretrain pretrain", ""),  # a host that came late
        ("1 0", "failed", "selfcheck", FAILED),
        ("2 0", "failed", "selfcheck", "plmjax: Expected a better run, found this one."),
    ],
)
def test_a_run_begins_when_the_selfcheck_of_its_slice_has_passed(
    host, cloud, clock, bucket: Path, codes: str, state: str, ran: str, reason: str
) -> None:
    worker = host(codes, patience=0, selfcheck=True)
    worker.run()
    ended = jobs.verdict(worker.job)
    assert ended.state == state and reason.format(bucket=bucket) in ended.reason
    lines = [line for line in logged(bucket).splitlines() if line.startswith("run ")]
    assert [line.split()[-1] for line in lines] == ran.split()
    assert state == "done" or reason.format(bucket=bucket) in logged(bucket)


def test_a_machine_that_starts_again_does_not_check_a_slice_twice(host, cloud) -> None:
    """The other hosts are in their run, and would wait for it."""
    assert host("0 0", patience=0, selfcheck=True, attempt=3).run() == 0
    worker = host("0", number=1, selfcheck=True, attempt=3)
    worker.bucket.remove(f"{worker.job.folder}")
    worker.number = 0
    assert worker.run() == 0 and left() == []


def test_the_ends_of_the_newest_files_are_copied(tmp_path: Path, bucket: Path) -> None:
    folder = crashes.folder(tmp_path / "logs")
    for number in range(crashes.FILES + 3):
        (folder / f"tpu_driver.{number}").write_text(f"{number}\n")
        os.utime(folder / f"tpu_driver.{number}", (number, number))
    (folder / "tpu_driver.INFO").symlink_to(folder / "tpu_driver.12")
    (folder / "empty").touch()
    (folder / "of a process").mkdir()
    (folder / "of a process" / "stderr").write_bytes(b"first" + b"x" * crashes.LARGEST + b"last")
    names = crashes.copy(folder, Bucket(str(bucket)), "crashes/0/now")
    assert names == ["of a process/stderr", *(f"tpu_driver.{number}" for number in range(12, 3, -1))]
    assert (bucket / "crashes" / "0" / "now" / "tpu_driver.7").read_text() == "7\n"
    contents = (bucket / "crashes" / "0" / "now" / "of a process" / "stderr").read_bytes()
    assert len(contents) == crashes.LARGEST and contents.endswith(b"xlast")
