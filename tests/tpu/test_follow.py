"""The status and the logs of a job."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from plmjax.errors import UserError
from tpu import follow
from tpu import job as jobs
from tpu.job import Verdict

pytestmark = pytest.mark.usefixtures("checked_once")


def record(folder: Path, **fields: object) -> None:
    """Writes the progress of a run, as its process that prints does."""
    usual = {"step": 6, "steps": 9, "loss": 2.5, "tokens_per_second": 1e6, "seconds_left": 90.0, "checkpoint": 5}
    folder.mkdir(exist_ok=True)
    (folder / "progress.json").write_text(json.dumps(usual | {"time": time.time(), "worker": 0} | fields))


def test_progress_is_one_small_record(tmp_path: Path) -> None:
    assert follow.progress(str(tmp_path)) is None
    record(tmp_path)
    assert str(follow.progress(str(tmp_path))) == "step 6 of 9  loss 2.5000  1.0M tok/s  ETA 1:30 min"
    record(tmp_path, loss=None, tokens_per_second=None, seconds_left=None, checkpoint=None)
    assert str(follow.progress(str(tmp_path))) == "step 6 of 9"
    for damaged in ("", "[]", '{"step": 1}'):
        (tmp_path / "progress.json").write_text(damaged)
        with pytest.raises(UserError, match=r"Expected the progress of a run in .*progress\.json, found another file"):
            follow.progress(str(tmp_path))


def test_status_and_logs_read_the_bucket(tpu, submit, service, bucket: Path, small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    record(run, steps=6, checkpoint=6)
    assert submit("--detach", "--workdir", run)[0] == 0
    printed = tpu("status", "tiny")[1]
    assert "v5e:4x4 (v5litepod-16, 4 hosts)" in printed and "ACCEPTED; attempt 1 of 5" in printed
    assert "step 6 of 6  loss 2.5000  1.0M tok/s" in printed and f"step 6 in {run}" in printed
    assert re.search(r"^logged +\d s ago$", printed, re.M)
    (bucket / "jobs" / "gone" / "events").mkdir(parents=True)  # of a job that was deleted
    assert re.search(r"^tiny +v5e:4x4 +WAITING_FOR_RESOURCES +step 6 of 6", tpu("status")[1], re.M)
    for attempt, part, text in (("2", "a-0000", "one\n"), ("2", "a-0001", "two\n"), ("10", "b-0000", "three\n")):
        file = bucket / "jobs" / "tiny" / attempt / "logs" / "3" / f"{part}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert tpu("logs", "tiny", "--worker", 3) == (0, "one\ntwo\nthree\n", "")
    assert tpu("logs", "tiny")[1:] == ("", "worker 0 of 4, which prints the losses; --worker J shows another one")
    record(run, worker=3)  # JAX's numbers of the hosts are others
    code, printed, said = tpu("logs", "tiny")
    assert (code, printed) == (0, "one\ntwo\nthree\n") and said.startswith("worker 3 of 4, which prints the losses")
    assert "worker from 0 to 3, found 4" in tpu("logs", "tiny", "--worker", 4)[2]


def test_logs_are_followed_until_the_job_has_ended(tpu, submit, bucket: Path, monkeypatch) -> None:
    assert submit("--detach")[0] == 0
    file = bucket / "jobs" / "tiny" / "1" / "logs" / "0" / "a-0000.log"
    file.parent.mkdir(parents=True)
    file.write_text("one\n")
    lines = iter(["two\n", "three\n"])

    def more(seconds: float) -> None:
        line = next(lines, None)
        if line is None:
            jobs.decide(jobs.find(str(bucket), "tiny"), Verdict("done"))
        else:
            file.write_text(file.read_text() + line)

    monkeypatch.setattr("time.sleep", more)
    assert tpu("logs", "tiny", "--follow")[1] == "one\ntwo\nthree\n"
