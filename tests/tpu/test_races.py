"""Two who act on one job at the same time: two watches, a watch and a submission, a watch and a deletion."""

import dataclasses
from pathlib import Path

import pytest

from tests.tpu.test_weather import hosts, run, submitted  # noqa: F401 - a fixture
from tpu import job as jobs
from tpu import queue, startup, watch
from tpu.bucket import Bucket
from tpu.job import Verdict

pytestmark = pytest.mark.usefixtures("checked_once")


def test_a_slice_whose_answer_is_missing_keeps_its_record(submit, service, bucket: Path) -> None:
    class Away(dict):
        def __getitem__(self, key: object) -> None:
            raise RuntimeError("away")

    service.operations = Away()
    code, printed, _ = submit("--detach")
    assert code == 0 and "The request was taken" in printed
    assert service.resources and jobs.find(str(bucket), "tiny").attempt == 1


def test_a_watch_does_not_delete_the_slice_that_another_one_has_requested(submitted, service) -> None:  # noqa: F811
    job = submitted(("ACTIVE", "SUSPENDED"), ("ACTIVE",))
    hosts(service, job, done=2)
    first, second = watch.Watch(job, print), watch.Watch(job, print)
    for _ in range(6):
        first.look()
        second.look()
        if not service.resources:
            break
    state = second.queue.state

    def late() -> queue.State:
        first.look()  # it requests the slice while the second one has read the job and not yet its slice
        return state()

    second.queue.state = late
    second.look()
    second.queue.state = state
    ended = next((ended for _ in range(5) if (ended := first.look() or second.look())), None)
    assert ended == Verdict("done") and len(service.called("CreateQueuedResource")) == 2


def test_a_look_between_the_record_and_the_request_of_a_submission_ends_nothing(submitted, service, tpu) -> None:  # noqa: F811
    job = submitted(("ACTIVE",))
    hosts(service, job, done=1)
    assert run(job) == Verdict("done")
    again = dataclasses.replace(job, attempt=2, first=2)
    jobs.save(again)
    assert tpu("watch", "tiny", "--once")[0] == 0
    queue.Queue(again).create(startup.render(again))
    assert jobs.verdict(again) is None


def test_a_job_that_is_deleted_while_its_slice_is_lost_leaves_no_slice(
    submitted,  # noqa: F811
    service,
    tpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = submitted(("ACTIVE", "SUSPENDED"), ("ACTIVE",))
    one = watch.Watch(job, print)
    for _ in range(2):
        one.look()
    remove = Bucket.remove

    def slowly(self: Bucket, folder: str) -> None:
        one.look()
        one.look()
        remove(self, folder)

    monkeypatch.setattr(Bucket, "remove", slowly)
    assert tpu("delete", "tiny")[0] == 0
    monkeypatch.setattr(Bucket, "remove", remove)
    for _ in range(3):
        one.look()
    assert not service.resources
