"""The terms on which slices are requested: tier, limits, labels, disks, zones, Cloud's names, the bucket's region."""

import json
import re
from pathlib import Path

import grpc
import pytest

from plmjax.errors import UserError
from plmjax.parallel import topologies
from tests.object_store import ObjectStore
from tests.tpu.jobs import TINY, ends, job_of
from tpu import capacity, queue, regions
from tpu import job as jobs
from tpu.job import Verdict

WEST = ("--zone", "us-west4-a")
BOTH = (*WEST, "--zone", "us-east1-d")
pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.fixture
def submit(tpu, service, bucket: Path):
    """Submits a tiny job with these options and returns at once: (exit code, what it printed, what it said)."""

    def run(*arguments: object, accelerator=("--accelerator", "v5litepod-16")) -> tuple[int, str, str]:
        return tpu(
            "submit", TINY, "--project", "p", *accelerator, "--bucket", bucket, "--name", "tiny", "--detach", *arguments
        )  # fmt: skip

    return run


def test_reservations_times_and_disks_of_a_request(bucket: Path) -> None:
    theirs = "projects/q/locations/us-west4-a/reservations/theirs"
    for given, name in (("-", "projects/p/locations/us-west4-a/reservations/-"), (theirs, theirs)):
        request = queue.create_request(job_of(bucket, runtime="r", reservation=given, spot=False), "")
        assert request.queued_resource.reservation_name == name
    request = queue.create_request(job_of(bucket, runtime="r", valid_until="2099-01-31T18:00:00Z"), "")
    assert request.queued_resource.queueing_policy.valid_until_time.isoformat() == "2099-01-31T18:00:00+00:00"
    request = queue.create_request(job_of(bucket, runtime="r", topology="2x2", data_disks=("a:read-write",)), "")
    node = request.queued_resource.tpu.node_spec[0].node
    assert [disk.mode.name for disk in node.data_disks] == ["READ_WRITE"]  # of a single host
    assert node.network_config.enable_external_ips and "spot" in request.queued_resource


def test_flex_start_is_requested_with_its_longest_duration(submit, service, bucket: Path, monkeypatch) -> None:
    monkeypatch.setenv("TPU_REST_ENDPOINT", service.rest())
    code, _, said = submit(*WEST, "--flex_start", "--max_run_duration", "1d12h", "--slices", 2)
    assert (code, said) == (0, "")
    (body,) = service.posted
    assert body["provisioningModel"] == "FLEX_START" and body["runDuration"] == {"maxRunDuration": "129600s"}
    assert "multiNodeParams" in body["tpu"]["nodeSpec"][0]
    assert list(service.resources) == ["projects/p/locations/us-west4-a/queuedResources/tiny"]
    assert queue.Queue(jobs.find(str(bucket), "tiny")).state().name == "ACCEPTED"
    assert not service.called("CreateQueuedResource")


def test_a_refusal_of_flex_start_is_a_sentence(submit, service, bucket: Path, monkeypatch) -> None:
    monkeypatch.setenv("TPU_REST_ENDPOINT", service.rest())
    service.refusals["POST"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded for preemptible cores")]
    code, _, said = submit(*WEST, "--flex_start", "--max_run_duration", "24h")
    assert code == 2 and "Expected quota and capacity for" in said and "Quota exceeded for preemptible cores" in said
    assert jobs.names(str(bucket)) == [] and not service.resources
    monkeypatch.setenv("TPU_REST_ENDPOINT", "http://127.0.0.1:9")
    code, _, said = submit(*WEST, "--flex_start", "--max_run_duration", "24h")
    assert code in (2, 69) and "ServiceUnavailable" in said and "\n" not in said and jobs.names(str(bucket)) == []


def test_zones_are_tried_in_turn_and_the_job_knows_its_own(tpu, submit, service, bucket: Path) -> None:
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more capacity in the zone")]
    code, printed, said = submit(*BOTH, "--spot")
    assert (code, said) == (0, "")
    assert "in us-west4-a of p, found too little (no more capacity in the zone)" in printed
    assert "Trying us-east1-d." in printed and "tiny: requested v5e:4x4 in us-east1-d" in printed
    assert list(service.resources) == ["projects/p/locations/us-east1-d/queuedResources/tiny"]
    script = service.called("CreateQueuedResource")[1].queued_resource.tpu.node_spec[0].node.metadata["startup-script"]
    assert "RESOURCE=projects/p/locations/us-east1-d/queuedResources/tiny\n" in script
    job = jobs.find(str(bucket), "tiny")
    assert (job.zone, job.zones) == ("us-east1-d", ("us-west4-a", "us-east1-d"))
    assert job.in_next_zone().zone == "us-west4-a" and job.in_next_zone().in_next_zone() == job
    assert job_of(bucket).in_next_zone() == job_of(bucket)
    ends(service, bucket, 3, Verdict("done"))
    assert tpu("watch", "tiny")[0] == 0 and not service.resources


def test_no_zone_has_capacity_or_one_refuses_for_another_reason(submit, service, bucket: Path) -> None:
    exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded")
    service.refusals["CreateQueuedResource"] = [exhausted, exhausted]
    code, _, said = submit(*BOTH)
    assert code != 0 and "in us-east1-d of p" in said and jobs.names(str(bucket)) == []
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode.PERMISSION_DENIED, "denied")]
    code, _, said = submit(*BOTH)
    assert code == 2 and "roles/tpu.admin" in said and len(service.called("CreateQueuedResource")) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--spot", "--reserved"), "--flex_start, found --spot and --reserved; leave out all but one"),
        (("--flex_start",), "Expected --flex_start and --max_run_duration together, found --flex_start alone"),
        (("--flex_start", "--max_run_duration", "8d"), "Expected --max_run_duration of at most 7d"),
        (("--flex_start", "--max_run_duration", "long"), "for --max_run_duration, found 'long'"),
        (("--valid_until", "2020-01-01T00:00:00Z"), "Expected --valid_until in the future"),
        (("--valid_until", "2099-01-01"), "Expected a duration such as 24h, or a time such as"),
        (("--reservation", "a b"), "Expected the name of a reservation"),
        (("--label", "Team=nlp"), "Expected --label KEY=VALUE"),
        (("--label", "a=1", "--label", "a=2"), "each key once"),
        (("--data_disk", "a:exec"), "Expected --data_disk NAME, or NAME:read-write, found 'a:exec'"),
        (("--data_disk", "a:read-write"), "read-only on a slice of 4 hosts"),
        (("--data_disk", "projects/q/zones/us-east1-d/disks/a"), "found it in us-east1-d"),
        (("--topology", "2x4"), "Expected a --topology of v5litepod-16, such as 4x4, found 2x4, which is v5litepod-8"),
    ],
)
def test_terms_that_contradict_each_other_are_sentences(submit, service, bucket: Path, options, sentence) -> None:
    code, printed, said = submit(*WEST, *options)
    assert code == 2 and sentence in said and "\n" not in said and not printed
    assert not service.requests and jobs.names(str(bucket)) == []


def test_clouds_names_are_read() -> None:
    for name in ("v4-32", "v5litepod-16", "v5e-16", "v3-128", "v6e-1", "v2-8"):
        assert topologies.of_accelerator_type(name).accelerator_type == name.replace("v5e", "v5litepod")
    for name, sentence in (
        ("v9-8", "found 'v9-8'; "),
        ("v4-33", "Expected one of the sizes of a v4 slice, v4-8, v4-16, v4-32, "),
        ("v5lite-16", "did you mean 'v5litepod'?"),
    ):
        with pytest.raises(UserError, match=re.escape(sentence)):
            topologies.of_accelerator_type(name)


def test_an_accelerator_without_a_size_needs_a_shape(submit, service) -> None:
    assert "Expected --topology, or a size in --accelerator" in submit(*WEST, accelerator=("--accelerator", "v5e"))[2]
    assert "Expected --accelerator, found none" in submit(*WEST, accelerator=())[2]
    code, printed, _ = submit(*WEST, accelerator=("--accelerator", "v4-32"))
    assert code == 0 and "v4-32 is the shape 2x2x4" in printed and "tiny: requested v4:2x2x4" in printed


def test_a_bucket_of_another_region_is_found() -> None:
    chosen = {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}}
    for place, zone, inside in (
        ({"location": "US-WEST4"}, "us-west4-a", True),
        ({"location": "US-WEST4"}, "us-west1-c", False),
        ({"location": "US"}, "us-west4-a", True),
        ({"location": "US"}, "europe-west4-a", False),
        ({"location": "EU"}, "europe-west4-a", True),
        ({"location": "EU"}, "europe-west2-a", False),
        ({"location": "NAM4"}, "us-central1-f", True),
        ({"location": "NAM4"}, "us-east5-a", False),
        (chosen, "us-west4-a", False),
        (chosen, "us-east1-d", True),
        ({"location": "LOCAL"}, "us-west4-a", True),
    ):
        assert regions.contains(place, regions.of_zone(zone)) == inside, (place, zone)


def test_a_bucket_of_another_region_is_a_warning_before_the_request(tpu, service) -> None:
    with ObjectStore() as store, store.environment():
        store.create("far")
        store.locations["far"] = {"location": "EUROPE-WEST4"}
        usual = ("--project", "p", "--accelerator", "v5e-16", "--bucket", "gs://far/deep", "--detach")
        code, printed, said = tpu("submit", TINY, *BOTH, *usual, "--", "--data.input", "gs://far/text")
        assert code == 0, said
        warnings = [line for line in printed.splitlines() if line.startswith("warning: ")]
        assert len(warnings) == 2
        assert warnings[0].startswith("warning: gs://far is in EUROPE-WEST4 and the slice in us-west4-a: every start")
        assert printed.index(warnings[1]) < printed.index("requested v5e:4x4")


def test_the_text_may_be_on_a_disk_of_the_slice(submit, service, tpu, bucket: Path) -> None:
    usual = (*WEST, "--dry_run", "--data_disk", "words", "--bucket", "gs://b")
    code, printed, _ = submit(*usual, "--", "--data.input", "/mnt/disks/words/text")
    assert code == 0 and json.dumps("/mnt/disks/words/text") in printed
    assert "found '/mnt/disks/other/text' on this machine" in submit(*usual, "--data.input", "/mnt/disks/other/text")[2]
    assert capacity.Disk.parse("words").folder == "/mnt/disks/words"
