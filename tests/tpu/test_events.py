"""Events of a job in its bucket."""

from pathlib import Path

import pytest

from plmjax.errors import UserError
from tests.tpu.jobs import job_of
from tpu import events


def test_events_are_read_in_the_order_in_which_they_happened(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(bucket, attempt=2)
    assert events.events(job) == []
    for moment, kind, worker in ((1.7e9 + 2.5, "active", None), (1.7e9, "requested", None), (1.7e9 + 3, "ended", 11)):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        events.event(job, kind, worker, **({"code": 69} if worker else {}))
    (bucket / "jobs" / "tiny" / "events" / "notes.txt").write_text("of somebody else")
    found = events.events(job)
    assert [(one.time, one.kind, one.worker) for one in found] == [
        (1.7e9, "requested", None), (1.7e9 + 2.5, "active", None), (1.7e9 + 3, "ended", 11)
    ]  # fmt: skip
    assert found[2].name == "1700000003000-ended-11.json"
    ended = {"kind": "ended", "time": 1.7e9 + 3, "attempt": 2, "worker": 11, "code": 69}
    assert events.contents(job, found[2]) == ended


def test_a_damaged_event_is_one_sentence(bucket: Path) -> None:
    job = job_of(bucket)
    events.event(job, "lost", step=5)
    (found,) = events.events(job)
    (bucket / "jobs" / "tiny" / "events" / found.name).write_text('{"kind"')
    with pytest.raises(UserError, match=r"Expected an event of tiny in .*-lost\.json, found another file"):
        events.contents(job, found)


def test_a_kind_that_would_not_be_found_again_is_refused(bucket: Path) -> None:
    with pytest.raises(ValueError, match="lower-case letters"):
        events.event(job_of(bucket), "lost-again")
