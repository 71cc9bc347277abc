"""A watch over a job: it ends at a verdict, a mistake or a deletion; no bad weather and no kill ends the job."""

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from plmjax.errors import UserError
from tests.object_store import ObjectStore, Refused
from tests.tpu import service as service_module
from tests.tpu.jobs import ends, job_of, states
from tests.tpu.service import CloudTpu
from tpu import events, follow, queue, startup, watch
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job, Verdict

pytestmark = pytest.mark.usefixtures("checked_once")
CAPACITY = 'There is no more capacity in the zone "us-west4-a", operation {}'


class Killed(BaseException):
    """The end of a watch in the middle of its work."""


@pytest.fixture
def submitted(service: CloudTpu, bucket: Path) -> Callable[..., Job]:
    """Requests a job's first slice, whose resource has this life, and the later ones theirs."""

    def make(*lives: tuple[str, ...], **fields: object) -> Job:
        job = job_of(bucket, runtime="r", **fields)
        service.lives = list(lives)
        jobs.save(job)
        events.event(job, "requested")
        queue.Queue(job).create(startup.render(job))
        return job

    return make


def hosts(service: CloudTpu, job: Job, *, done: int, checkpoints: Callable[[int], int | None] = lambda _: None) -> None:
    """Has the hosts save a checkpoint while a slice is ACTIVE, and end the job on the slice `done`.

    checkpoints: attempt -> the step of the checkpoint that its slice saves.
    """
    answer = service._get

    def get(request):
        found = answer(request)
        if found.state.state.name == "ACTIVE":
            attempt = int(re.search(r"ATTEMPT=(\d+)", found.tpu.node_spec[0].node.metadata["startup-script"])[1])
            if (step := checkpoints(attempt)) is not None:
                (Path(job.workdir) / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
            if attempt == done:
                jobs.decide(dataclasses.replace(job, attempt=attempt), Verdict("done"))
        return found

    service._get = get


def run(job: Job, said: list[str] | None = None, **settings: object) -> Verdict:
    return watch.until_ended(watch.Watch(job, [].append if said is None else said.append, **settings))


def kinds(job: Job) -> list[str]:
    return [one.kind for one in events.events(job)]


def test_capacity_is_waited_for_and_told_once(submitted, service, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [("ACCEPTED", f"FAILED:{CAPACITY.format(number)}") for number in range(8)]
    failed[4] = ("WAITING_FOR_RESOURCES", "FAILED:9:Stockout of TPUs")
    job, said = submitted(*failed, ("PROVISIONING", "ACTIVE")), []
    hosts(service, job, done=1)
    start = watch.time.time()
    assert run(job, said) == Verdict("done")
    assert len(service.called("CreateQueuedResource")) == 9 and not service.resources
    assert jobs.find(job.bucket, job.name).attempt == 1  # no slice was created before
    assert sum("could not provide the slice" in line for line in said) == 3  # the reason changes twice
    assert 8 * 150 < watch.time.time() - start < 8 * 1000
    assert kinds(job) == ["requested", "active", "done"]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_refused_request_is_repeated(submitted, service, late: bool) -> None:
    from google.rpc import status_pb2

    job, said = submitted(("ACTIVE", "SUSPENDED"), ("ACTIVE",)), []
    hosts(service, job, done=2)
    begin, refused = service._create, [8, 8, 8, 14, 13, 10, 4, 16, 8]

    def create(request):
        if not refused:
            service.late_error = None
            return begin(request)
        code = refused.pop(0)
        if late:
            service.late_error = status_pb2.Status(code=code, message="not now")
            return begin(request)
        raise service_module.Refused(next(status for status in grpc.StatusCode if status.value[0] == code), "not now")

    service._create = create
    assert run(job, said) == Verdict("done")
    assert jobs.find(job.bucket, job.name).attempt == 2 and not service.resources and not refused
    assert sum("too little (not now)" in line for line in said) == 2
    assert kinds(job) == ["requested", "active", "lost", "created", "active", "done"]


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("GetQueuedResource", "INTERNAL"),
        ("GetNode", "UNAVAILABLE"),
        ("DeleteQueuedResource", "UNAUTHENTICATED"),
        ("DeleteQueuedResource", "ABORTED"),
        ("CreateQueuedResource", "DEADLINE_EXCEEDED"),
        ("CreateQueuedResource", "ABORTED"),
    ],
)
def test_no_answer_of_cloud_tpu_ends_a_watch(submitted, service, method: str, code: str) -> None:
    job, said = submitted(("ACTIVE", "SUSPENDED"), ("ACTIVE",)), []
    hosts(service, job, done=2)
    service.refusals[method] = [(grpc.StatusCode[code], f"operation {number}") for number in range(12)]
    assert run(job, said) == Verdict("done")
    assert not service.refusals[method] and not service.resources
    assert said.count("deleting the slice") <= 2
    warned = sum("operation" in line for line in said)
    assert warned == 0 if (method, code) == ("DeleteQueuedResource", "ABORTED") else 1 <= warned <= 2  # once a spell


def test_a_right_that_is_lost_ends_a_watch_and_not_the_job(submitted, service) -> None:
    job = submitted(("ACTIVE",))
    service.refusals["GetQueuedResource"] = [(grpc.StatusCode.PERMISSION_DENIED, "denied")] * 2
    hosts(service, job, done=1)
    assert run(job) == Verdict("done")
    job = submitted(("ACTIVE",), name="small")
    service.refusals["GetQueuedResource"] = [(grpc.StatusCode.PERMISSION_DENIED, "denied")] * 3
    with pytest.raises(UserError, match=r"roles/tpu\.admin"):
        run(job)
    assert service.resources


def test_no_answer_of_the_bucket_ends_a_watch(service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of request of a life with a loss is refused several times, with another status each time."""
    retry = pytest.importorskip("gcsfs.retry")
    monkeypatch.setattr(retry, "is_retriable", lambda error: False)  # the client would wait for a minute each time
    with ObjectStore() as store, store.environment():
        store.create("weather")
        job, said = job_of("gs://weather", runtime="r"), []
        service.lives = [("ACCEPTED", "ACTIVE", "SUSPENDED"), ("ACTIVE",)]
        jobs.save(job)
        queue.Queue(job).create(startup.render(job))
        hosts(service, job, done=2)
        answer, refused = store._server.RequestHandlerClass._route, collections.Counter()

        def route(self, path, query, body):
            place = (self.command, path)
            if refused[place] < 3:
                refused[place] += 1
                raise Refused((503, 429, 403)[refused[place] % 3], "not now")
            return answer(self, path, query, body)

        monkeypatch.setattr(store._server.RequestHandlerClass, "_route", route)
        assert run(job, said) == Verdict("done")
        assert len(refused) > 8 and set(refused.values()) == {3} and not service.resources
        assert jobs.find(job.bucket, job.name).attempt == 2


@pytest.mark.parametrize("progress", [True, False])
def test_losses_end_a_job_only_without_progress_between_them(submitted, service, progress: bool) -> None:
    job, said = submitted(*[("ACTIVE", "SUSPENDED")] * (7 if progress else 9), ("ACTIVE",), attempts=3), []
    hosts(service, job, done=8, checkpoints=lambda attempt: 100 * attempt if progress else min(attempt, 5))
    ended = run(job, said)
    asked = [line.partition(", ")[2] for line in said if "requesting another one" in line]
    assert not service.resources
    if progress:
        assert ended == Verdict("done") and jobs.find(job.bucket, job.name).attempt == 8
        assert asked == ["attempt 2 of 3"] * 7
    else:
        assert ended.state == "failed" and "lost 3 times without a checkpoint after step 5" in ended.reason
        assert jobs.find(job.bucket, job.name).attempt == 7 and asked[-2:] == ["attempt 2 of 3", "attempt 3 of 3"]


def scheduled(job: Job, said: list[str], **settings: object) -> Verdict:
    """Looks as a scheduler starts them: each is a new process, which knows what is in the bucket alone."""
    while True:
        known = jobs.find(job.bucket, job.name)
        if (ended := watch.once(watch.Watch(known, said.append, **settings))) is not None:
            return ended
        watch.time.sleep(300)


LIVES = [
    ("ACCEPTED", "FAILED:no capacity"), ("FAILED:no capacity",), ("ACTIVE", "NODE:PREEMPTED"),
    ("PROVISIONING", "FAILED:no capacity"), ("ACTIVE", "SUSPENDING", "SUSPENDED"), ("ACTIVE", "ACTIVE"),
]  # fmt: skip


@pytest.mark.parametrize("way", [run, scheduled])
def test_single_looks_do_what_a_long_watch_does(submitted, service, way: Callable) -> None:
    job, said = submitted(*LIVES), []
    hosts(service, job, done=3)
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "no quota")]
    assert way(job, said) == Verdict("done")
    assert kinds(job) == ["requested", "active", "lost", "created", "active", "lost", "created", "active", "done"]
    assert len(service.called("CreateQueuedResource")) == len(LIVES) + 1
    assert jobs.find(job.bucket, job.name).attempt == 3 and not service.resources


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_watch_that_is_killed_at_any_step_is_continued(submitted, service, monkeypatch, when: str) -> None:
    """Each step is a write to the bucket or a request that changes something; the next watch finds what is there."""
    steps, fatal = itertools.count(), [0]

    def killing(call: Callable) -> Callable:
        def step(*arguments):
            number = next(steps)
            if number == fatal[0] and when == "before":
                raise Killed
            result = call(*arguments)
            if number == fatal[0] and when == "after":
                raise Killed
            return result

        return step

    job = submitted(*LIVES[2:])
    hosts(service, job, done=3)
    monkeypatch.setattr(jobs.Bucket, "write", killing(jobs.Bucket.write))
    monkeypatch.setattr(queue.Queue, "begin", killing(queue.Queue.begin))
    monkeypatch.setattr(queue.Queue, "ask_to_delete", killing(queue.Queue.ask_to_delete))
    ended = None
    for further in range(1, 99):  # steps after which it is killed again
        try:
            ended = run(jobs.find(job.bucket, job.name))
            break
        except Killed:
            fatal[0] = next(steps) + further
    assert further > 5 and ended == Verdict("done") and not service.resources
    assert jobs.find(job.bucket, job.name).attempt == 3
    assert len(service.called("CreateQueuedResource")) in (4, 5)  # one that was answered may be asked again


def test_damaged_notes_are_one_sentence(submitted, bucket: Path) -> None:
    job = submitted(("ACTIVE",))
    for text in ("{", json.dumps({"attempt": "1"})):
        (bucket / "jobs" / "tiny" / "watch.json").write_text(text)
        with pytest.raises(UserError, match=r"Expected the notes of python -m tpu watch in .*watch\.json, found anoth"):
            watch.Watch(job, lambda line: None).look()


# Two who act on one job at the same time: two watches, a watch and a submission, a watch and a deletion.


def test_a_slice_whose_answer_is_missing_keeps_its_record(submit, service, bucket: Path) -> None:
    class Away(dict):
        def __getitem__(self, key: object) -> None:
            raise RuntimeError("away")

    service.operations = Away()
    code, printed, _ = submit("--detach")
    assert code == 0 and "The request was taken" in printed
    assert service.resources and jobs.find(str(bucket), "tiny").attempt == 1


def test_a_watch_does_not_delete_the_slice_that_another_one_has_requested(submitted, service) -> None:
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


def test_a_look_between_the_record_and_the_request_of_a_submission_ends_nothing(submitted, service, tpu) -> None:
    job = submitted(("ACTIVE",))
    hosts(service, job, done=1)
    assert run(job) == Verdict("done")
    again = dataclasses.replace(job, attempt=2, first=2)
    jobs.save(again)
    assert tpu("watch", "tiny", "--once")[0] == 0
    queue.Queue(again).create(startup.render(again))
    assert jobs.verdict(again) is None


def test_a_job_that_is_deleted_while_its_slice_is_lost_leaves_no_slice(
    submitted, service, tpu, monkeypatch: pytest.MonkeyPatch
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


# What is told to whoever submits and follows a job.


def test_a_job_is_followed_from_the_queue_to_its_end_and_given_back(submit, service, bucket: Path) -> None:
    service.slow = 3
    service.lives = [("CREATING", "ACCEPTED", *["WAITING_FOR_RESOURCES"] * 5, "PROVISIONING", "ACTIVE")]
    ends(service, bucket, 15, Verdict("done"))
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
        watch.time.sleep(watch.SILENCE / 2)
    jobs.Bucket(one.job.bucket).remove("jobs/tiny/2/logs")
    assert "No host of the slice has written a log" in watch.until_ended(one).reason and not service.resources


@pytest.mark.parametrize(
    ("life", "sentence"),
    [
        (("ACCEPTED", "FAILED:3:unknown runtime version"), "could not provide the slice: unknown runtime version"),
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
