"""Jobs on Cloud TPU, asked for with the real client of a service that answers as the published protocol says."""

import json
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2

from plmjax.errors import UserError
from tests.object_store import ObjectStore
from tests.tpu.jobs import TINY, ends, job_of
from tests.tpu.service import Refused
from tpu import job as jobs
from tpu import queue
from tpu.job import Verdict

pytestmark = pytest.mark.usefixtures("checked_once")


REFUSALS = {
    "RESOURCE_EXHAUSTED": ("Quota limit 'TPUV5sLitepod' has been exceeded. Limit: 0", "capacity for v5litepod-16"),
    "PERMISSION_DENIED": ("Permission 'tpu.queuedResources.create' denied", "roles/tpu.admin"),
    "UNAUTHENTICATED": ("Request had invalid credentials", "gcloud auth application-default login"),
    "ALREADY_EXISTS": ("Resource already exists", "choose another --name"),
    "NOT_FOUND": ("Location was not found", "choose a --zone"),
    "INVALID_ARGUMENT": ("Cloud TPU got unsupported topology", "Cloud TPU got unsupported topology"),
    "INTERNAL": ("boom", "InternalServerError (boom)"),
}


def test_every_refusal_is_a_sentence_and_leaves_nothing(submit, service, bucket: Path) -> None:
    """The last one comes late."""
    for code, (message, sentence) in REFUSALS.items():
        service.refusals["CreateQueuedResource"] = [(grpc.StatusCode[code], message)]
        found, _, said = submit()
        assert found == (69 if code in ("INTERNAL", "UNAUTHENTICATED") else 2)
        assert sentence in said and "\n" not in said and said.endswith(".")
        assert message.split(".")[0] in said or code == "ALREADY_EXISTS"
        assert not service.resources and jobs.names(str(bucket)) == []
    service.slow, service.late_error = 2, status_pb2.Status(code=8, message="Quota exceeded for TPU cores")
    code, _, said = submit("--spot")
    assert code == 2 and "Expected quota and capacity for spot v5litepod-16" in said and "Quota exceeded" in said
    assert jobs.names(str(bucket)) == []


def test_a_service_out_of_reach(tpu, submit, service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.refusals["GetQueuedResource"] = [(grpc.StatusCode.UNAVAILABLE, "moved")] * 3  # it answers the fourth time
    assert submit("--detach")[0] == 0
    assert tpu("status", "tiny")[0] == 0
    monkeypatch.setattr(queue.Queue, "PATIENCE", 0.01)
    service.refusals["GetQueuedResource"] = [(grpc.StatusCode.UNAVAILABLE, "moved")] * 99
    code, _, said = tpu("status", "tiny")
    assert code == 69 and "try again" in said


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
    before = jobs.find(str(bucket), "tiny")
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded")]
    assert submit()[0] == 2
    assert jobs.find(str(bucket), "tiny") == before
    ends(service, bucket, 4, Verdict("done"))
    code, printed, _ = submit("--", "--checkpoint.keep", 7)
    assert code == 0 and "attempt" not in printed
    job = jobs.find(str(bucket), "tiny")
    assert (job.attempt, job.first, job.overrides) == (2, 2, ("--checkpoint.keep", "7"))
    (*_, last) = service.called("CreateQueuedResource")
    script = last.queued_resource.tpu.node_spec[0].node.metadata["startup-script"]
    assert "ATTEMPT=2\n" in script and "FOLDER=jobs/tiny/2\n" in script


def test_an_answer_that_was_lost_does_not_make_two_slices(submit, service) -> None:
    answer = service._create

    def lost(request):
        answer(request)
        service._create = answer
        raise Refused(grpc.StatusCode.UNAVAILABLE, "connection reset")

    service._create = lost
    assert submit("--detach")[0] == 0
    assert len(service.called("CreateQueuedResource")) == 2 and len(service.resources) == 1


def test_a_damaged_job_or_verdict_is_one_sentence(bucket: Path) -> None:
    jobs.save(job_of(bucket))
    file = bucket / "jobs" / "tiny" / "job.json"
    fields = json.loads(file.read_text())
    for changed in ({"slices": [1]}, {"attempts": 10**30}, {"overrides": [1]}, {"more": 1}, {"step": -1}):
        file.write_text(json.dumps(fields | changed))
        with pytest.raises(UserError, match=r"Expected a job that this version wrote in .*jobs/tiny/job\.json, found"):
            jobs.find(str(bucket), "tiny")
    file.write_text(json.dumps(fields))
    job, verdict = jobs.find(str(bucket), "tiny"), bucket / "jobs" / "tiny" / "1" / "verdict.json"
    verdict.parent.mkdir()
    for content in ("", '{"state": "ended", "reason": ""}', '{"state": "done", "reason": 1}'):
        verdict.write_text(content)
        with pytest.raises(UserError, match=r"Expected the outcome of an attempt in .*1/verdict\.json, found another"):
            jobs.verdict(job)
