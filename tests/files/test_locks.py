"""One process at a time in a folder, on a disk and in a bucket."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from plmjax.errors import Unavailable, UserError
from plmjax.files import buckets, locks, storage
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT

HOLD = """
import sys, time
from plmjax.files import locks, storage

with locks.lock(storage.path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def holder(folder: Path | str):
    """Another process that holds a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "disk":
        return tmp_path / "run"
    return storage.path(f"gs://{request.getfixturevalue('bucket')}/run")


def test_a_folder_is_held_by_one_process_which_is_named(folder: Path) -> None:
    with holder(folder) as process:
        with pytest.raises(UserError, match=rf"found process {process.pid} on \S+ \(since .*name another folder"):
            locks.lock(folder).__enter__()
        process.send_signal(signal.SIGKILL)  # which leaves the file where it is
        process.wait()
        assert json.loads((folder / locks.NAME).read_text())["pid"] == process.pid
        with locks.lock(folder):
            assert json.loads((folder / locks.NAME).read_text())["pid"] == os.getpid()
            with pytest.raises(UserError, match=f"process {os.getpid()} "):
                locks.lock(folder).__enter__()
    assert not (folder / locks.NAME).exists()


def test_folders_that_stay_empty_are_removed_again(tmp_path: Path) -> None:
    with locks.lock(tmp_path / "runs" / "refused"):
        assert (tmp_path / "runs" / "refused" / locks.NAME).exists()
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    with locks.lock(tmp_path / "there" / "kept"):
        (tmp_path / "there" / "kept" / "made").touch()
    assert [path.name for path in (tmp_path / "there" / "kept").iterdir()] == ["made"]


def test_a_lock_that_was_removed_before_it_was_taken_is_taken_again(tmp_path: Path, monkeypatch) -> None:
    """A holder removes the file when it ends; whoever has opened that file would hold what nobody else sees."""
    import fcntl

    flock, calls = fcntl.flock, []

    def late(file, operation: int) -> None:
        calls.append(operation)
        if len(calls) < 3:
            (tmp_path / "run" / locks.NAME).unlink()
        if len(calls) == 2:  # by the process that holds the folder next
            (tmp_path / "run" / locks.NAME).touch()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locks.lock(tmp_path / "run"):
        assert len(calls) == 3
        assert json.loads((tmp_path / "run" / locks.NAME).read_text())["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"process {os.getpid()} "):
            locks.lock(tmp_path / "run").__enter__()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_the_number_of_a_holder_that_is_gone_may_be_that_of_another_process(bucket: str) -> None:
    folder, said = storage.path(f"gs://{bucket}/run"), []
    known = json.loads(locks._holder())
    lost = known | {"token": "of a lock that this process lost"}
    for left in (known | {"pid": os.getppid(), "started": "1"}, lost):
        assert buckets.replace(folder / locks.NAME, json.dumps(left), 0)
        with locks.lock(folder, said.append):  # at once: on this machine nothing has to be waited for
            assert json.loads((folder / locks.NAME).read_text())["token"] not in (known["token"], lost["token"])
    assert not said


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leaves the lock of a process of another machine in a bucket."""
    monkeypatch.setattr(locks, "_machine", lambda: "another")
    left = locks._holder()
    monkeypatch.undo()
    assert buckets.replace(folder / locks.NAME, left, 0)
    return left


def test_a_lock_of_another_machine_is_watched_before_it_is_taken_over(bucket: str, monkeypatch) -> None:
    """A holder that leaves is followed at once, one that still writes is left alone."""
    folder, said = storage.path(f"gs://{bucket}/run"), []
    path, left = folder / locks.NAME, elsewhere(folder, monkeypatch)
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.1)
    leaving = threading.Timer(0.3, lambda: storage.remove(path))
    leaving.start()
    begun = time.monotonic()
    with locks.lock(folder, said.append):
        assert time.monotonic() - begun < locks.SILENT_SECONDS / 2
    leaving.join()
    assert buckets.replace(path, left, 0)
    writing = threading.Timer(0.3, lambda: buckets.replace(path, left, buckets.generation(path)[0]))
    writing.start()
    with pytest.raises(Unavailable, match=f"found process {os.getpid()} on "):
        locks.lock(folder, said.append).__enter__()
    writing.join()
    assert buckets.generation(path)[1] == left
    monkeypatch.setattr(locks, "SILENT_SECONDS", 0.5)
    begun = time.monotonic()
    del said[:]
    with locks.lock(folder, said.append):
        assert time.monotonic() - begun > 0.5
        assert len(said) == 1 and said[0].startswith(f"waiting    up to 0.5 s, whether process {os.getpid()} on ")


def test_a_lock_is_removed_after_its_last_beat(bucket: str, monkeypatch) -> None:
    """A beat after the removal would find the lock lost, and end the process."""
    folder, replace = storage.path(f"gs://{bucket}/run"), buckets.replace
    begun, ended, lost = threading.Event(), threading.Event(), []

    def slow(path: Path, contents: str, generation: int) -> int:
        if not generation:
            return replace(path, contents, generation)
        begun.set()
        time.sleep(0.2)
        made = replace(path, contents, generation)
        ended.set()
        return made

    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(locks, "_lost", lambda *where: lost.append(where) or 0)
    monkeypatch.setattr(buckets, "replace", slow)
    with locks.lock(folder):
        assert begun.wait(30)
    assert ended.wait(30) and not lost
    assert buckets.generation(folder / locks.NAME) == (0, "")


def test_a_link_in_the_place_of_a_lock_is_not_written_through(tmp_path: Path) -> None:
    """The target of the link would be truncated."""
    folder, letter = tmp_path / "run", tmp_path / "letter.txt"
    folder.mkdir()
    letter.write_text("dear")
    for target in (letter, tmp_path / "none", "lock.json"):
        (folder / locks.NAME).symlink_to(target)
        with pytest.raises(UserError, match=r"Expected a lock of this project at .*lock\.json, found a file that"):
            locks.lock(folder).__enter__()
        (folder / locks.NAME).unlink()
    assert letter.read_text() == "dear" and sorted(tmp_path.iterdir()) == [letter, folder]


def test_no_two_runs_work_in_one_folder(tmp_path: Path, prose: Path, small_run: Path, fails) -> None:
    """The second one changes nothing, and says whom to wait for. tests/test_kills.py has the other commands."""
    folder = tmp_path / "run"
    tuning = ("finetune", "experiments/finetune_sentences.py", "--from", small_run, "--workdir", folder)
    pretraining = ("pretrain", "experiments/bert_tiny.py", "--workdir", folder, "--data.input", prose, *SMALL_BERT)
    with locks.lock(folder):
        for command in (pretraining, tuning, (*tuning, "--seeds", "1", "2")):
            assert f"{folder} for this process alone, found process {os.getpid()} on " in fails(*command)
            assert [path.name for path in folder.iterdir()] == [locks.NAME]
