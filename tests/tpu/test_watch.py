"""A watch over a job: it ends at a verdict, a mistake or a deletion, and at nothing else."""

import time
from pathlib import Path

import pytest

from tests.tpu.jobs import ends, job_of, states
from tpu import follow, queue, watch
from tpu import job as jobs
from tpu.job import Verdict

pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.mark.nightly
def test_a_job_is_followed_from_the_queue_to_its_end_and_given_back(submit, service, bucket: Path) -> None:
    service.slow = 3
    service.lives = [("CREATING", "ACCEPTED", *["WAITING_FOR_RESOURCES"] * 50, "PROVISIONING", "ACTIVE")]
    ends(service, bucket, 60, Verdict("done"))
    code, printed, said = submit()
    assert (code, said) == (0, "")
    assert states(printed) == ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert printed.splitlines()[-1] == "tiny: done"
    assert not service.resources and not service.nodes
    (request,) = service.called("CreateQueuedResource")
    assert request.queued_resource.tpu.node_spec[0].node.accelerator_type == "v5litepod-16"
    (deletion,) = service.called("DeleteQueuedResource")
    assert deletion.name == "projects/p/locations/us-west4-a/queuedResources/tiny" and deletion.force
    assert [path.name for path in (bucket / "packages").iterdir()] == [jobs.find(str(bucket), "tiny").package[9:]]


def test_a_job_that_failed_is_given_back_and_not_run_again(submit, service, bucket: Path) -> None:
    ends(service, bucket, 5, Verdict("failed", "The run crashed 3 times."))
    code, printed, _ = submit()
    assert code == 1 and "tiny: failed: The run crashed 3 times." in printed and "python -m tpu logs tiny" in printed
    assert len(service.called("CreateQueuedResource")) == 1 and not service.resources


@pytest.mark.parametrize(
    "loss",
    [
        ("SUSPENDING", "SUSPENDED"),
        ("NODE:PREEMPTED",),
        pytest.param(("NODE:TERMINATED", "SUSPENDED"), marks=pytest.mark.nightly),
    ],
)
def test_a_slice_that_is_preempted_is_asked_for_again(submit, service, bucket: Path, loss: tuple[str, ...]) -> None:
    service.lives = [("ACCEPTED", "ACTIVE", *loss), ("WAITING_FOR_RESOURCES", "ACTIVE")]
    ends(service, bucket, 12, Verdict("done"))
    code, printed, _ = submit("--spot", "--slices", 2)
    assert code == 0 and "attempt 2 of 5" in printed
    first, second = service.called("CreateQueuedResource")
    assert first.request_id != second.request_id
    assert first.queued_resource_id == second.queued_resource_id == "tiny"
    assert jobs.find(str(bucket), "tiny").attempt == 2
    script = second.queued_resource.tpu.node_spec[0].node.metadata["startup-script"]
    assert "ATTEMPT=2\n" in script and "FOLDER=jobs/tiny/2\n" in script
    assert not service.resources


def test_attempts_are_counted_from_the_last_submission(service, bucket: Path) -> None:
    """The fourth slice of a job is the first one of its second submission, and the sixth the last."""
    (line,) = (line for line in follow.status(job_of(bucket, attempt=5, first=4)) if line.startswith("state "))
    assert line == "state       not running: no slice is requested; attempt 2 of 3"
    said: list[str] = []
    service.lives = [("ACTIVE", "SUSPENDED")] * 9
    job = job_of(bucket, attempt=4, first=4, runtime="r")
    queue.Queue(job).create("")
    jobs.save(job)
    ended = watch.until_ended(watch.Watch(job, said.append))
    assert ended.state == "failed" and "lost 3 times without a checkpoint" in ended.reason
    asked = [line.partition(", ")[2] for line in said if "requesting another one" in line]
    assert asked == ["attempt 2 of 3", "attempt 3 of 3"]
    assert jobs.find(str(bucket), "tiny").attempt == 6


def test_a_slice_is_silent_only_where_no_host_has_written_a_log(service, bucket: Path) -> None:
    one = watch.Watch(job_of(bucket, attempt=2, runtime="r"), lambda line: None)
    jobs.save(one.job)
    one.queue.create("")
    jobs.Bucket(one.job.bucket).write("jobs/tiny/1/logs/0/a.log", b"of the first slice")
    jobs.Bucket(one.job.bucket).write("jobs/tiny/2/logs/3/a.log", b"installing")
    for _ in range(9):
        assert one.look() is None
        time.sleep(watch.SILENCE / 2)
    jobs.Bucket(one.job.bucket).remove("jobs/tiny/2/logs")
    assert "No host of the slice has written a log" in watch.until_ended(one).reason and not service.resources


@pytest.mark.parametrize(
    ("life", "sentence"),
    [
        (("ACCEPTED", "FAILED:3:unknown runtime version"), "could not provide the slice: unknown runtime version"),
        (("ACCEPTED", "FAILED:7:denied"), "could not provide the slice: denied"),
        (("ACTIVE", "SUSPENDED:USER"), "suspended by a user"),
        (("ACTIVE", "GONE"), "deleted before the run was complete"),
    ],
)
def test_what_does_not_come_back_ends_the_job(submit, service, life, sentence) -> None:
    service.lives = [life]
    code, printed, _ = submit("--spot")
    assert code == 1 and sentence in printed
    assert len(service.called("CreateQueuedResource")) == 1 and not service.resources


def test_ctrl_c_leaves_the_job_alone(submit, service, bucket: Path) -> None:
    def interrupt(request):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "until_ended", interrupt)
        code, printed, _ = submit()
    assert code == 130 and "python -m tpu watch tiny" in printed
    assert service.resources and jobs.verdict(jobs.find(str(bucket), "tiny")) is None
