"""Requests to a running job: a profile, and the stacks of its hosts, from real workers and a real process."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plmjax.training import profiling
from plmjax.training.profiling import Done, Request
from plmjax.training.progress import Progress
from tests.tpu.jobs import job_of
from tpu import job as jobs
from tpu import stacks
from tpu.job import Verdict
from tpu.worker import Worker

PRINTS = """
import faulthandler, pathlib, signal, time
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGTERM, lambda *_: exit(75))
print("training", flush=True)
pathlib.Path("ready").touch()
def computing_a_step():
    while True:
        time.sleep(0.01)
computing_a_step()
"""
STARTS = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)"


@pytest.fixture
def job(bucket: Path) -> jobs.Job:
    """A job of 4 hosts, of 100 steps."""
    made = job_of(bucket, resolved={"training": {"steps": 100}}, project="", zone="", workdir=str(bucket / "run"))
    (bucket / "run").mkdir()
    jobs.save(made)
    return made


@pytest.fixture
def hosts(job, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a program as plmjax on the hosts with these numbers, while the block runs."""
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)  # workers are threads here

    @contextlib.contextmanager
    def run(program: str, *numbers: int) -> Iterator[None]:
        (tmp_path / "plmjax").mkdir()
        (tmp_path / "plmjax" / "__init__.py").touch()
        (tmp_path / "plmjax" / "__main__.py").write_text(program)
        monkeypatch.chdir(tmp_path)
        workers = [Worker(job, number, tmp_path / f"log{number}", every=0.05, patience=0) for number in numbers]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            (tmp_path / "ready").unlink(missing_ok=True)
            thread.start()
            while not (tmp_path / "ready").exists():
                time.sleep(0.01)
        try:
            yield
        finally:
            jobs.decide(job, Verdict("failed", "over"))
            for thread in threads:
                thread.join()

    return run


def test_stacks_of_all_hosts_are_printed_and_hosts_without_an_answer_named(tpu, hosts, bucket: Path) -> None:
    with hosts(PRINTS, 0, 2):
        code, printed, said = tpu("debug", "tiny", "--seconds", 1)
    assert (code, said) == (0, "")
    _, first, second = printed.split("---- worker ")
    second, missing = second.split("---- no answer of ")
    for number, part in ((0, first), (2, second)):
        assert part.startswith(f"{number}\n") and "computing_a_step" in part and "training" not in part
        (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / str(number)).iterdir()
        assert log.read_text().count("in computing_a_step") == 1 and "ended with" not in log.read_text()
    assert missing == "worker 1, 3 within 1 s\n"


def test_a_plmjax_that_has_no_handler_yet_is_not_killed(tpu, hosts, bucket: Path) -> None:
    with hosts(STARTS, 0):
        _, printed, _ = tpu("debug", "tiny", "--seconds", 1)
    assert "---- worker 0\nplmjax is starting and has no stacks yet" in printed
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    assert "ended with" not in log.read_text()


def test_stacks_of_a_job_without_hosts(tpu, job, tmp_path: Path) -> None:
    code, _, said = tpu("debug", "tiny", "--seconds", 0)
    assert code == 69 and "Expected an answer of the 4 hosts of tiny within 0 s, found none" in said
    old = {"id": "old", "time": time.time() - stacks.LATE_SECONDS - 1}  # a request of yesterday
    jobs.Bucket(job.bucket).write(f"{job.folder}/{stacks.REQUEST}", json.dumps(old).encode())
    assert stacks.answer(job, 0, 1, log=tmp_path / "log", answered="") == ""
    jobs.decide(job, Verdict("failed", "no disk"))
    for command in ("debug", "profile"):
        code, _, said = tpu(command, "tiny")
        assert code == 2 and "Expected a running job named tiny, found it failed" in said


def test_a_profile_is_asked_for_waited_for_and_named(tpu, job) -> None:
    workdir, asked = Path(job.workdir), []

    def answer() -> None:
        while not (workdir / profiling.REQUEST).exists():
            time.sleep(0.01)
        time.sleep(0.3)  # it is told where the run is before
        asked.append(Request.read(workdir))
        (workdir / "profile" / "trace").mkdir(parents=True)
        (workdir / "profile" / "trace" / "host.xplane.pb").touch()
        Done(asked[0].id, 50, 52, "profile/trace").write(workdir)

    Progress(9, 100).write(workdir)
    thread = threading.Thread(target=answer)
    thread.start()
    code, printed, said = tpu("profile", "tiny", "--steps", 3, "--from", 50)
    thread.join()
    assert (code, said, asked[0].steps, asked[0].first) == (0, "", 3, 50)
    assert "the run is at step 9 of 100" in printed
    assert (
        f"steps 50 to 52 are in {workdir}/profile/trace\n" in printed and f"xprof --logdir {workdir}/profile" in printed
    )


def test_mistakes_of_a_profile_are_sentences(tpu, job) -> None:
    workdir = Path(job.workdir)
    assert "Expected --steps from 1 to 1000, found 0" in tpu("profile", "tiny", "--steps", 0)[2]
    assert "Expected --from a step of the run, 1 to 100, found 200" in tpu("profile", "tiny", "--from", 200)[2]
    profiling.ask(workdir, 4, 0)
    code, _, said = tpu("profile", "tiny")
    assert code == 2 and "Expected no other profile of tiny, found one of 4 steps asked for 0 s ago" in said
    (workdir / profiling.REQUEST).unlink()
    code, _, said = tpu("profile", "tiny", "--minutes", 0)
    assert code == 69 and "Expected a trace of tiny within 0 s, found none" in said
    assert not (workdir / profiling.REQUEST).exists()  # withdrawn, so that the next one is free
