"""A watch in bad weather: lacks of capacity, services that fail, a watch that is killed. None of it ends a job."""

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
from tests.tpu.jobs import job_of
from tests.tpu.service import CloudTpu
from tpu import events, notes, queue, startup, watch
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
    failed = [("ACCEPTED", f"FAILED:{CAPACITY.format(number)}") for number in range(20)]
    failed[7] = ("WAITING_FOR_RESOURCES", "FAILED:9:Stockout of TPUs")
    job, said = submitted(*failed, ("PROVISIONING", "ACTIVE")), []
    hosts(service, job, done=1)
    start = watch.time.time()
    assert run(job, said) == Verdict("done")
    assert len(service.called("CreateQueuedResource")) == 21 and not service.resources
    assert jobs.find(job.bucket, job.name).attempt == 1  # no slice was created before
    assert sum("could not provide the slice" in line for line in said) == 3  # the reason changes twice
    assert 20 * 300 / 2 < watch.time.time() - start < 20 * 1000
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
        from tests.tpu.service import Refused

        raise Refused(next(status for status in grpc.StatusCode if status.value[0] == code), "not now")

    service._create = create
    assert run(job, said) == Verdict("done")
    assert jobs.find(job.bucket, job.name).attempt == 2 and not service.resources and not refused
    assert sum("too little (not now)" in line for line in said) == 2
    assert kinds(job) == ["requested", "active", "lost", "created", "active", "done"]


CODES = ("INTERNAL", "UNAVAILABLE", "UNAUTHENTICATED", "DEADLINE_EXCEEDED", "ABORTED")
METHODS = ("GetQueuedResource", "GetNode", "DeleteQueuedResource", "CreateQueuedResource")


# By day every code and every method: pytest -m nightly tests/tpu/test_weather.py
@pytest.mark.parametrize(
    ("method", "code"),
    [
        pytest.param(method, code, marks=() if number % 4 == place or code == "ABORTED" else pytest.mark.nightly)
        for place, method in enumerate(METHODS)
        for number, code in enumerate(CODES)
    ],
)
def test_no_answer_of_cloud_tpu_ends_a_watch(submitted, service, method: str, code: str) -> None:
    job, said = submitted(("ACTIVE", "SUSPENDED"), ("ACTIVE",)), []
    hosts(service, job, done=2)
    service.refusals[method] = [(grpc.StatusCode[code], f"operation {number}") for number in range(40)]
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


@pytest.mark.nightly
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
            if refused[place] < 5:
                refused[place] += 1
                raise Refused((503, 500, 429, 401, 403)[refused[place] % 5], "not now")
            return answer(self, path, query, body)

        monkeypatch.setattr(store._server.RequestHandlerClass, "_route", route)
        assert run(job, said) == Verdict("done")
        assert len(refused) > 8 and set(refused.values()) == {5} and not service.resources
        assert jobs.find(job.bucket, job.name).attempt == 2


def test_progress_resets_the_number_of_attempts(submitted, service) -> None:
    job, said = submitted(*[("ACTIVE", "SUSPENDED")] * 20, ("ACTIVE", "ACTIVE"), attempts=3), []
    hosts(service, job, done=21, checkpoints=lambda attempt: 100 * attempt)
    assert run(job, said) == Verdict("done")
    assert jobs.find(job.bucket, job.name).attempt == 21
    asked = [line for line in said if "requesting another one" in line]
    assert len(asked) == 20 and all(line.endswith("attempt 2 of 3") for line in asked)


def test_losses_without_progress_between_them_end_a_job(submitted, service) -> None:
    job, said = submitted(*[("ACTIVE", "SUSPENDED")] * 20, attempts=3), []
    hosts(service, job, done=0, checkpoints=lambda attempt: min(attempt, 5))
    ended = run(job, said)
    assert ended.state == "failed" and "lost 3 times without a checkpoint after step 5" in ended.reason
    assert jobs.find(job.bucket, job.name).attempt == 7 and not service.resources


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


def test_a_job_that_is_submitted_again_is_watched_afresh(submitted, service) -> None:
    """The first watch left its notes before the lost slice was gone; a person submitted the job again."""
    job = submitted(("ACTIVE",), attempt=2, first=2)
    left = notes.Notes(1, wanted=2, unsent=[{"job": "tiny", "event": "lost", "text": "tiny lost its slice."}])
    notes.write(job, left)
    hosts(service, job, done=2)
    assert notes.read(job) == notes.Notes(2, unsent=left.unsent)
    assert run(job) == Verdict("done")
    assert len(service.called("CreateQueuedResource")) == 1


def test_a_deleted_job_ends_its_watch_and_leaves_nothing(submitted, service, tpu, bucket: Path) -> None:
    job = submitted(("ACTIVE", "SUSPENDED"), *[("FAILED:no capacity",)] * 99)
    one = watch.Watch(job, lambda line: None)
    while notes.read(jobs.find(job.bucket, job.name)).refusals < 3 or service.resources:
        one.look()
        watch.time.sleep(60)
    assert "requests a slice again" in tpu("status", "tiny")[1]
    assert tpu("delete", "tiny")[0] == 0
    assert watch.until_ended(one) == Verdict("failed", "The job was deleted.")
    assert not service.resources and jobs.names(str(bucket)) == []


def test_damaged_notes_are_one_sentence(submitted, bucket: Path) -> None:
    job = submitted(("ACTIVE",))
    for text in ("{", "[]", json.dumps({"attempt": "1"}), json.dumps({"attempt": 1, "more": 2})):
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
    submitted,
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
