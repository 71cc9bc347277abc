"""The same job for Kubernetes."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.tpu.jobs import job_of
from tests.tpu.jobset_schema import JOBSET
from tpu import job as jobs
from tpu import starts

TINY = "experiments/bert_tiny.py"
pytestmark = pytest.mark.usefixtures("checked_once")


def check(manifest: object) -> None:
    jsonschema.validate(manifest, JOBSET, cls=jsonschema.Draft202012Validator)


@pytest.fixture
def submit(tpu, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Submits to a cluster: the JobSet that was written."""
    monkeypatch.setenv("TPU_API_ENDPOINT", "nobody is asked")

    def run(*arguments: object) -> dict:
        file = tmp_path / "job.yaml"
        code, printed, said = tpu("submit", TINY, "--bucket", bucket, "--kubernetes", file, *arguments)
        assert code == 0, said
        assert f"kubectl apply -f {file}" in printed
        return yaml.safe_load(file.read_text())

    return run


@pytest.mark.parametrize(
    ("accelerator", "topology", "label", "hosts", "chips"),
    [
        ("v5e", "1x1", "tpu-v5-lite-podslice", 1, 1),
        ("v5e", "2x4", "tpu-v5-lite-podslice", 1, 8),
        ("v4", "2x2x4", "tpu-v4-podslice", 4, 4),
        pytest.param("v3", "8x8", "tpu-v3-slice", 16, 4, marks=pytest.mark.nightly),
        pytest.param("v5e", "8x8", "tpu-v5-lite-podslice", 16, 4, marks=pytest.mark.nightly),
        pytest.param("v5p", "4x4x4", "tpu-v5p-slice", 16, 4, marks=pytest.mark.nightly),
        pytest.param("v6e", "4x4", "tpu-v6e-slice", 4, 4, marks=pytest.mark.nightly),
        pytest.param("7x", "2x2x4", "tpu7x", 4, 4, marks=pytest.mark.nightly),
    ],
)
def test_a_slice_is_a_job_and_a_host_a_pod(submit, accelerator, topology, label, hosts, chips) -> None:
    found = submit("--accelerator", accelerator, "--topology", topology, "--name", "run", "--attempts", 4)
    check(found)
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 1000  # the hosts count attempts, up to the next checkpoint
    (replicated,) = found["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"], job["backoffLimit"]) == (1, hosts, hosts, 0)
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    (container,) = pod["containers"]
    assert container["resources"] == {"requests": {"ephemeral-storage": "20Gi"}, "limits": {"google.com/tpu": chips}}
    assert "hostNetwork" not in pod and "dnsPolicy" not in pod


def test_slices_spot_and_the_script(submit, bucket: Path, tpu) -> None:
    found = submit(
        "--accelerator", "v5e", "--topology", "4x4", "--slices", 3, "--spot", "--service_account", "trainer",
        "--image", "mine:1", "--", "--training.steps", 7, "--training.batch_size", 96,
    )  # fmt: skip
    check(found)
    (replicated,) = found["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert (replicated["replicas"], replicated["template"]["spec"]["parallelism"]) == (3, 4)
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["tolerations"][0]["key"] == "cloud.google.com/gke-spot"
    assert (pod["serviceAccountName"], pod["containers"][0]["image"]) == ("trainer", "mine:1")
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}  # of a host, not of all slices
    shell, option, script = pod["containers"][0]["command"]
    assert (shell, option) == ("bash", "-c")
    assert "--training.steps 7" in script and "WORKERS=12\n" in script and "RESOURCE=''\n" in script
    assert "$$" not in script  # Kubernetes reads a command, and makes one dollar of two
    job = jobs.find(str(bucket), "bert-tiny")
    assert (bucket / job.package).is_file() and job.project == ""
    assert "on Kubernetes" in tpu("status", "bert-tiny")[1]
    assert "kubectl get jobset" in tpu("watch", "bert-tiny")[2]
    assert "kubectl delete jobset bert-tiny" in tpu("delete", "bert-tiny")[1]


def test_starts_without_a_new_checkpoint_between_them_end_a_job(bucket: Path) -> None:
    job = job_of(bucket, project="", attempts=3)
    for step in (None, 5, 5, 6, 7, 8, 8):
        if step:
            (bucket / "run" / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
        starts.count(job)
        assert jobs.verdict(job) is None, step
    assert jobs.verdict(job) is None
    starts.count(job)
    assert "lost 3 times without a checkpoint after step 8" in jobs.verdict(job).reason


def test_a_dry_run_prints_the_manifest_and_writes_nothing(tpu, bucket: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    arguments = ["--bucket", bucket, "--kubernetes", file, "--accelerator", "v6e", "--topology", "8x8"]
    code, printed, _ = tpu("submit", TINY, *arguments, "--dry_run")
    assert code == 0 and not file.exists() and not list(bucket.iterdir())
    check(yaml.safe_load(printed[printed.index("apiVersion") :]))


@pytest.mark.parametrize(
    ("slice_", "sentence"),
    [
        (("v2", "--topology", "4x4"), "a chip that GKE offers, found v2"),
        (
            ("v5e", "--topology", "2x4", "--slices", 2),
            "slices of several hosts, which are the only ones that GKE joins, found v5e:2x4*2",
        ),
    ],
)
def test_slices_that_gke_does_not_have(tpu, bucket: Path, tmp_path: Path, slice_: tuple, sentence: str) -> None:
    file = tmp_path / "job.yaml"
    code, _, said = tpu("submit", TINY, "--bucket", bucket, "--kubernetes", file, "--accelerator", *slice_)
    assert code == 2 and sentence in said
