"""Requests to a running job: a profile, and the stacks of its hosts, from real workers and a real process."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest

from plmjax.training import profiling
from plmjax.training.profiling import Done, Profile
from plmjax.training.progress import Progress
from tests.tpu.jobs import job_of
from tpu import job as jobs
from tpu import profiles, stacks
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


@pytest.mark.nightly
def test_stacks_of_all_hosts_are_printed_and_hosts_without_an_answer_named(tpu, hosts, bucket: Path) -> None:
    with hosts(PRINTS, 0, 2):
        code, printed, said = tpu("debug", "tiny", "--seconds", 3)
    assert (code, said) == (0, "")
    _, first, second = printed.split("---- worker ")
    second, missing = second.split("---- no answer of ")
    for number, part in ((0, first), (2, second)):
        assert part.startswith(f"{number}\n") and "computing_a_step" in part and "training" not in part
        (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / str(number)).iterdir()
        assert log.read_text().count("in computing_a_step") == 1 and "ended with" not in log.read_text()
    assert missing == "worker 1, 3 within 3 s\n"


def test_a_plmjax_that_has_no_handler_yet_is_not_killed(tpu, hosts, bucket: Path) -> None:
    with hosts(STARTS, 0):
        _, printed, _ = tpu("debug", "tiny", "--seconds", 1)
    assert "---- worker 0\nplmjax is starting and has no stacks yet" in printed
    (log,) = (bucket / "jobs" / "tiny" / "1" / "logs" / "0").iterdir()
    assert "ended with" not in log.read_text()


def test_stacks_of_a_job_without_hosts(tpu, job) -> None:
    code, _, said = tpu("debug", "tiny", "--seconds", 0)
    assert code == 69 and "Expected an answer of the 4 hosts of tiny within 0 s, found none" in said
    jobs.decide(job, Verdict("done"))
    code, _, said = tpu("debug", "tiny")
    assert code == 2 and "Expected a running job named tiny, found it done" in said


def test_a_request_of_yesterday_is_not_answered(job, bucket: Path, tmp_path: Path) -> None:
    old = {"id": "old", "time": time.time() - stacks.LATE_SECONDS - 1}
    jobs.Bucket(job.bucket).write(f"{job.folder}/{stacks.REQUEST}", json.dumps(old).encode())
    assert stacks.answer(job, 0, 1, log=tmp_path / "log", answered="") == ""


@pytest.fixture
def trained(job, monkeypatch: pytest.MonkeyPatch):
    """The job trains in a thread, one step in a moment, to its last step."""
    monkeypatch.setattr(profiling, "LOOK_SECONDS", 0.02)
    over = threading.Event()
    workdir = Path(job.workdir)

    def train() -> None:
        profile, state = Profile((), workdir / "profile", 1, final=100, workdir=workdir), jnp.zeros(3)
        for step in range(1, 101):
            if over.wait(0.05):
                break
            Progress(step, 100).write(workdir)
            profile.before(step)
            state = state + 1
            profile.after(step, state)
        profile.close()

    thread = threading.Thread(target=train)
    thread.start()
    yield
    over.set()
    thread.join()


def test_a_profile_is_asked_for_waited_for_and_named(tpu, job, trained) -> None:
    said: list[str] = []
    done, folder = profiles.profile(job, 3, 10, report=said.append, limit=20, every=0.05)
    assert (done.first >= 10, done.last - done.first) == (True, 2)
    assert folder.startswith(f"{job.workdir}/profile/plugins/profile/") and list(Path(folder).glob("*.xplane.pb"))
    assert any("the run is at step" in line and line.endswith(" of 100") for line in said)
    code, printed, wrong = tpu("profile", "tiny", "--steps", 2)
    assert (code, wrong) == (0, "") and Done.read(Path(job.workdir)).first > done.last
    assert f"are in {job.workdir}/profile/plugins/profile/" in printed
    assert f"xprof --logdir {job.workdir}/profile" in printed


def test_mistakes_of_a_profile_are_sentences(tpu, job) -> None:
    workdir = Path(job.workdir)
    assert "Expected --steps from 1 to 1000, found 0" in tpu("profile", "tiny", "--steps", 0)[2]
    assert "Expected --from a step of the run, 1 to 100, found 200" in tpu("profile", "tiny", "--from", 200)[2]
    assert "did you mean 'tiny'?" in tpu("profile", "tinny")[2]
    profiling.ask(workdir, 4, 0)
    code, _, said = tpu("profile", "tiny")
    assert code == 2 and "Expected no other profile of tiny, found one of 4 steps asked for 0 s ago" in said
    (workdir / profiling.REQUEST).unlink()
    code, _, said = tpu("profile", "tiny", "--minutes", 0)
    assert code == 69 and "Expected a trace of tiny within 0 s, found none" in said
    assert not (workdir / profiling.REQUEST).exists()  # withdrawn, so that the next one is free
    jobs.decide(job, Verdict("failed", "no disk"))
    code, _, said = tpu("profile", "tiny")
    assert code == 2 and "Expected a running job named tiny, found it failed" in said
