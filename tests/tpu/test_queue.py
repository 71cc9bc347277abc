"""Jobs on Cloud TPU, asked for with the real client of a service that answers as the published protocol says."""

import dataclasses
import json
import re
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.training import metrics
from tests.object_store import ObjectStore
from tpu import follow, queue
from tpu import job as jobs
from tpu.job import Verdict

TINY = "experiments/bert_tiny.py"
NAME = "projects/p/locations/us-west4-a/queuedResources/tiny"
pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.fixture
def submit(tpu, service, bucket: Path):
    """Submits a tiny job and follows it: (exit code, what it printed, what it said of mistakes)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        return tpu(
            "submit", TINY, "--project", "p", "--zone", "us-west4-a", "--accelerator", "v5e", "--topology", "4x4",
            "--bucket", bucket, "--name", "tiny", *arguments,
        )  # fmt: skip

    return run


def ends(service, bucket: Path, after: int, verdict: Verdict) -> None:
    """Has the hosts of the job end it when its resource was looked at so often."""
    answer = service._get
    left = [after]

    def counted(request):
        left[0] -= 1
        if left[0] == 0:
            jobs.decide(jobs.find(str(bucket), "tiny"), verdict)
        return answer(request)

    service._get = counted


def states(printed: str) -> list[str]:
    return [line.split()[1] for line in printed.splitlines() if re.match(r"\d\d:\d\d:\d\d  [A-Z_]+", line)]


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
    assert deletion.name == NAME and deletion.force
    assert [path.name for path in (bucket / "packages").iterdir()] == [jobs.find(str(bucket), "tiny").package[9:]]


def test_a_job_that_failed_is_given_back_and_not_run_again(submit, service, bucket: Path) -> None:
    ends(service, bucket, 5, Verdict("failed", "The run crashed 3 times."))
    code, printed, _ = submit()
    assert code == 1 and "tiny: failed: The run crashed 3 times." in printed and "python -m tpu logs tiny" in printed
    assert len(service.called("CreateQueuedResource")) == 1 and not service.resources


@pytest.mark.parametrize("loss", [("SUSPENDING", "SUSPENDED"), ("NODE:PREEMPTED",), ("NODE:TERMINATED", "SUSPENDED")])
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


def test_lost_slices_are_asked_for_so_often_and_not_more(submit, service, bucket: Path) -> None:
    service.lives = [("ACTIVE", "SUSPENDED")] * 9
    code, printed, _ = submit("--spot", "--attempts", 3)
    assert code == 1 and "lost 3 times" in printed.splitlines()[-2]
    assert len(service.called("CreateQueuedResource")) == 3
    assert not service.resources
    assert jobs.verdict(jobs.find(str(bucket), "tiny")).state == "failed"


def job_of(folder: Path, **fields: object) -> jobs.Job:
    """A job of at most three attempts."""
    usual = {"name": "tiny", "experiment": TINY, "overrides": (), "resolved": {}, "accelerator": "v5e"}
    usual |= {"topology": "4x4", "slices": 1, "spot": True, "bucket": str(folder), "workdir": str(folder / "run")}
    usual |= {"package": "packages/a.tar.gz", "jax": "1", "attempts": 3, "project": "p", "zone": "us-west4-a"}
    return jobs.Job(**usual | fields)


def test_attempts_are_counted_from_the_last_submission(service, bucket: Path) -> None:
    """The fourth slice of a job is the first one of its second submission, and the sixth the last."""
    ended = [follow._failure(job_of(bucket, attempt=n, first=4), queue.State("SUSPENDED"), 0.0) for n in (4, 5, 6)]
    assert ended[:2] == [None, None] and "lost 3 times" in ended[2].reason
    (line,) = (line for line in follow.status(job_of(bucket, attempt=5, first=4)) if line.startswith("state "))
    assert line == "state       not running: no slice is requested; attempt 2 of 3"
    said: list[str] = []
    service.lives = [("ACTIVE", "SUSPENDED")] * 9
    job = job_of(bucket, attempt=4, first=4, runtime="r")
    queue.Queue(job).create("")
    assert follow.watch(job, said.append).state == "failed"
    asked = [line.partition(", ")[2] for line in said if "requesting another one" in line]
    assert asked == ["attempt 2 of 3", "attempt 3 of 3"]
    assert jobs.find(str(bucket), "tiny").attempt == 6


def test_a_slice_is_silent_only_where_no_host_has_written_a_log(bucket: Path) -> None:
    active, job = queue.State("ACTIVE"), job_of(bucket, attempt=2)
    jobs.Bucket(job.bucket).write("jobs/tiny/1/logs/0/a.log", b"of the first slice")
    assert follow._failure(job, active, follow.SILENCE - 1) is None
    assert "No host of the slice has written a log" in follow._failure(job, active, follow.SILENCE + 1).reason
    jobs.Bucket(job.bucket).write("jobs/tiny/2/logs/3/a.log", b"installing")
    assert follow._failure(job, active, follow.SILENCE + 1) is None


@pytest.mark.parametrize(
    ("life", "sentence"),
    [
        (("ACCEPTED", "FAILED:no capacity"), "could not provide the slice: no capacity"),
        (("ACTIVE", "SUSPENDED:USER"), "suspended by a user"),
        (("ACTIVE", "GONE"), "deleted before the run was complete"),
    ],
)
def test_what_does_not_come_back_ends_the_job(submit, service, life, sentence) -> None:
    service.lives = [life]
    code, printed, _ = submit("--spot")
    assert code == 1 and sentence in printed
    assert len(service.called("CreateQueuedResource")) == 1 and not service.resources


def test_a_slice_whose_hosts_never_speak_is_given_back(submit, service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu.follow.SILENCE", 0.0)
    code, printed, _ = submit("--spot")
    assert code == 1 and "No host of the slice has written a log" in printed and not service.resources


@pytest.mark.parametrize(
    ("code", "message", "sentence"),
    [
        ("RESOURCE_EXHAUSTED", "Quota limit 'TPUV5sLitepod' has been exceeded. Limit: 0", "quota for v5litepod-16"),
        ("PERMISSION_DENIED", "Permission 'tpu.queuedResources.create' denied", "roles/tpu.admin"),
        ("UNAUTHENTICATED", "Request had invalid credentials", "gcloud auth application-default login"),
        ("ALREADY_EXISTS", "Resource already exists", "choose another --name"),
        ("NOT_FOUND", "Location was not found", "choose a --zone"),
        ("INVALID_ARGUMENT", "Cloud TPU got unsupported topology", "Cloud TPU got unsupported topology"),
        ("FAILED_PRECONDITION", "The API is disabled", "The API is disabled"),
        ("INTERNAL", "boom", "InternalServerError (boom)"),
    ],
)
def test_every_refusal_is_a_sentence_and_leaves_nothing(submit, service, bucket, code, message, sentence) -> None:
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode[code], message)]
    found, _, said = submit()
    assert found == 2 and sentence in said and "\n" not in said
    assert message.split(".")[0] in said or code == "ALREADY_EXISTS"
    assert said.endswith(".") and not service.resources
    assert jobs.names(str(bucket)) == []


def test_a_refusal_that_comes_late_is_one_too(submit, service, bucket: Path) -> None:
    service.slow = 2
    service.late_error = status_pb2.Status(code=8, message="Quota exceeded for TPU cores")
    code, _, said = submit("--spot")
    assert code == 2 and "Expected quota for spot v5litepod-16" in said and "Quota exceeded for TPU cores" in said
    assert jobs.names(str(bucket)) == []


def test_a_service_out_of_reach(tpu, submit, service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.refusals["GetQueuedResource"] = [(grpc.StatusCode.UNAVAILABLE, "moved")] * 3  # it answers the fourth time
    assert submit("--detach")[0] == 0
    assert tpu("status", "tiny")[0] == 0
    monkeypatch.setattr(queue.Queue, "PATIENCE", 0.01)
    service.refusals["GetQueuedResource"] = [(grpc.StatusCode.UNAVAILABLE, "moved")] * 99
    code, _, said = tpu("status", "tiny")
    assert code == 2 and "try again" in said


def test_missing_credentials_are_a_sentence(tpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth

    def none(*arguments: object, **keywords: object) -> None:
        raise google.auth.exceptions.DefaultCredentialsError("none")

    monkeypatch.setattr(google.auth, "default", none)
    arguments = ["--project", "p", "--zone", "us-west4-a", "--accelerator", "v5e", "--topology", "4x4"]
    with ObjectStore() as store, store.environment():
        store.create("my-bucket")
        code, _, said = tpu("submit", TINY, *arguments, "--bucket", "gs://my-bucket")
        assert code == 2 and "gcloud auth application-default login" in said
        assert not store.buckets["my-bucket"]
        assert "gs://none" in tpu("submit", TINY, *arguments, "--bucket", "gs://none")[2]


def test_a_name_belongs_to_one_experiment_and_one_slice(tpu, submit, service, bucket: Path) -> None:
    assert submit("--detach")[0] == 0
    code, _, said = submit()
    assert code == 2 and "python -m tpu watch tiny" in said
    code, _, said = submit("--", "--optimizer.learning_rate", "0.5")
    assert code == 2 and "Expected optimizer.learning_rate = 0.001" in said and "found 0.5" in said
    assert tpu("delete", "tiny")[0] == 0 and not service.resources
    assert jobs.names(str(bucket)) == []
    assert submit("--detach", "--", "--optimizer.learning_rate", "0.5")[0] == 0


def test_submitted_again_a_job_that_ended_goes_on(submit, service, bucket: Path) -> None:
    ends(service, bucket, 4, Verdict("failed", "no disk"))
    assert submit()[0] == 1
    ends(service, bucket, 4, Verdict("done"))
    code, printed, _ = submit("--", "--checkpoint.keep", 7)
    assert code == 0 and "attempt" not in printed
    job = jobs.find(str(bucket), "tiny")
    assert (job.attempt, job.first, job.overrides) == (2, 2, ("--checkpoint.keep", "7"))


def test_a_second_submission_that_is_refused_leaves_the_record_of_the_first(submit, service, bucket: Path) -> None:
    ends(service, bucket, 4, Verdict("failed", "no disk"))
    assert submit()[0] == 1
    before = jobs.find(str(bucket), "tiny")
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded")]
    assert submit()[0] == 2
    assert jobs.find(str(bucket), "tiny") == before


def test_one_slice_of_several_that_is_lost_is_enough() -> None:
    assert queue.State("ACTIVE", nodes=("READY", "PREEMPTED")).lost
    assert not queue.State("ACTIVE", nodes=("READY", "READY")).lost


def test_the_time_left_is_that_of_the_rows_that_are_left_in_every_phase(tmp_path: Path) -> None:
    experiments.write(experiments.load("experiments/bert_large_8x8.py"), tmp_path / "experiment.json")
    for step, tokens in ((10, (900_000 - 10) * 256 * 128 + 100_000 * 256 * 512), (999_990, 10 * 256 * 512)):
        line = {"step": step, "time": 0.0, "train/loss": 2.0, "tokens_per_second": 1e6}
        (tmp_path / "metrics.jsonl").write_text(metrics.to_line(line))
        assert follow.progress(str(tmp_path)).seconds_left == pytest.approx(tokens / 1e6)


def test_watch_follows_what_was_left_alone(tpu, submit, service, bucket: Path) -> None:
    service.lives = [("ACTIVE", "SUSPENDED"), ("ACTIVE",)]
    assert submit("--detach", "--spot")[0] == 0
    ends(service, bucket, 12, Verdict("done"))
    code, printed, _ = tpu("watch", "tiny")
    assert code == 0 and "attempt 2 of 5" in printed and not service.resources


def test_ctrl_c_leaves_the_job_alone(submit, service, bucket: Path) -> None:
    def interrupt(request):
        raise KeyboardInterrupt

    from tpu import follow

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "watch", lambda job, say: interrupt(job))
        code, printed, _ = submit()
    assert code == 130 and "python -m tpu watch tiny" in printed
    assert service.resources and jobs.verdict(jobs.find(str(bucket), "tiny")) is None


def test_an_answer_that_was_lost_does_not_make_two_slices(submit, service) -> None:
    answer = service._create

    def lost(request):
        answer(request)
        service._create = answer
        from tests.tpu.service import Refused

        raise Refused(grpc.StatusCode.UNAVAILABLE, "connection reset")

    service._create = lost
    assert submit("--detach")[0] == 0
    assert len(service.called("CreateQueuedResource")) == 2 and len(service.resources) == 1


def test_status_and_logs_read_the_bucket(tpu, submit, service, bucket: Path, small_run: Path) -> None:
    assert submit("--detach", "--workdir", small_run)[0] == 0
    printed = tpu("status", "tiny")[1]
    assert "v5e:4x4 (v5litepod-16, 4 hosts)" in printed and "ACCEPTED; attempt 1 of 5" in printed
    last = json.loads((small_run / "metrics.jsonl").read_text().splitlines()[-2])
    assert re.search(rf"step 6 of 6  loss {last['train/loss']:.4f}  \S+ tok/s", printed)
    assert f"step 6 in {small_run}" in printed
    assert re.search(r"^tiny +v5e:4x4 +WAITING_FOR_RESOURCES +step 6 of 6", tpu("status")[1], re.M)
    for attempt, part, text in (("2", "a-0000", "one\n"), ("2", "a-0001", "two\n"), ("10", "b-0000", "three\n")):
        file = bucket / "jobs" / "tiny" / attempt / "logs" / "3" / f"{part}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert tpu("logs", "tiny", "--worker", 3)[1] == "one\ntwo\nthree\n"
    assert tpu("logs", "tiny")[1] == ""
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


def test_a_damaged_job_or_verdict_is_one_sentence(bucket: Path) -> None:
    folder = bucket / "jobs" / "tiny"
    (folder / "1").mkdir(parents=True)
    fields = {field.name: "a" for field in dataclasses.fields(jobs.Job)}
    fields |= {"overrides": [], "resolved": {}, "spot": True, "slices": 1, "attempts": 1, "attempt": 1, "first": 1}
    fields |= {"zones": [], "internal_ips": False, "labels": [], "data_disks": [], "max_run_seconds": 0}
    fields["bucket"] = str(bucket)
    for changed in ({"slices": [1]}, {"attempts": 10**30}, {"name": None}, {"overrides": [1]}, {"more": 1}):
        (folder / "job.json").write_text(json.dumps(fields | changed))
        with pytest.raises(UserError, match=r"Expected a job that this version wrote in .*jobs/tiny/job\.json, found"):
            jobs.find(str(bucket), "tiny")
    (folder / "job.json").write_text(json.dumps(fields | {"name": "tiny"}))
    job = jobs.find(str(bucket), "tiny")
    for content in ("", "[]", '{"state": "ended", "reason": ""}', '{"state": "done", "reason": 1}', '{"a'):
        (folder / "1" / "verdict.json").write_text(content)
        with pytest.raises(UserError, match=r"Expected the outcome of an attempt in .*1/verdict\.json, found another"):
            jobs.verdict(job)
    (folder / "1" / "verdict.json").unlink()
    (folder / "1" / "verdict.json").mkdir()
    with pytest.raises(UserError, match=r"Expected a file that can be read at .*verdict\.json"):
        jobs.verdict(job)
