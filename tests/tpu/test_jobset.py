"""The same job for Kubernetes."""

from pathlib import Path

import pytest
import yaml

from tests.tpu.jobs import TINY, job_of
from tpu import job as jobs
from tpu import starts

pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.fixture
def submit(tpu, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Submits to a cluster: the JobSet that was written, or the sentence of a mistake."""
    monkeypatch.setenv("TPU_API_ENDPOINT", "nobody is asked")

    def run(*arguments: object, wrong: str = "") -> dict:
        file = tmp_path / "job.yaml"
        code, printed, said = tpu("submit", TINY, "--bucket", bucket, "--kubernetes", file, *arguments)
        assert code == (2 if wrong else 0) and wrong in said, said
        assert (f"kubectl apply -f {file}" in printed) == (not wrong)
        assert file.exists() == (not wrong and "--dry_run" not in arguments)
        return yaml.safe_load(file.read_text() if file.exists() else printed[printed.find("apiVersion") :])

    return run


def jobset(name: str, slices: int, hosts: int, pod: dict) -> dict:
    """The fields of a JobSet, in jobset.x-k8s.io/v1alpha2, Kubernetes' batch/v1 and core/v1."""
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"containerName": "worker", "operator": "In", "values": [2]}}
            ]
        },
        "template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 300} | pod},
    }
    failed = {"name": "failedForGood", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "plmjax"},
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # The hosts count attempts, up to the next checkpoint.
            "failurePolicy": {"maxRestarts": 1000, "rules": [failed]},
            "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"spec": job}}],
        },
    }


def container(script: str, chips: int, image: str = "") -> dict:
    """The container of a host with so many chips."""
    return {
        "name": "worker",
        "image": image,
        "command": ["bash", "-c", script],
        "ports": [{"name": "libtpu", "containerPort": 8471}, {"name": "coordinator", "containerPort": 8482}],
        "resources": {"requests": {"ephemeral-storage": "20Gi"}, "limits": {"google.com/tpu": chips}},
    }


@pytest.mark.parametrize(
    ("accelerator", "topology", "label", "hosts", "chips"),
    [
        ("v5e", "2x4", "tpu-v5-lite-podslice", 1, 8),
        ("v4", "2x2x4", "tpu-v4-podslice", 4, 4),
        pytest.param("7x", "2x2x2", "tpu7x", 2, 4, marks=pytest.mark.nightly),
    ],
)
def test_a_slice_is_a_job_and_a_host_a_pod(submit, bucket: Path, accelerator, topology, label, hosts, chips) -> None:
    found = submit("--accelerator", accelerator, "--topology", topology, "--name", "run", "--dry_run")
    (replicated,) = found["spec"]["replicatedJobs"]
    (made,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    selector = {"cloud.google.com/gke-tpu-accelerator": label, "cloud.google.com/gke-tpu-topology": topology}
    pod = {"nodeSelector": selector, "containers": [container(made["command"][2], chips, made["image"])]}
    assert found == jobset("run", 1, hosts, pod) and not list(bucket.iterdir())


def test_slices_spot_and_the_script(submit, bucket: Path, tpu) -> None:
    found = submit(
        "--accelerator", "v5e", "--topology", "4x4", "--slices", 3, "--spot", "--service_account", "trainer",
        "--image", "mine:1", "--", "--training.steps", 7, "--training.batch_size", 96,
    )  # fmt: skip
    (replicated,) = found["spec"]["replicatedJobs"]
    script = replicated["template"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    spot, gke = "cloud.google.com/gke-spot", "cloud.google.com/gke-tpu"
    pod = {
        "nodeSelector": {f"{gke}-accelerator": "tpu-v5-lite-podslice", f"{gke}-topology": "4x4", spot: "true"},
        "containers": [container(script, 4, "mine:1")],  # chips of a host, not of all slices
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "serviceAccountName": "trainer",
        "tolerations": [{"key": spot, "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
    }
    assert found == jobset("bert-tiny", 3, 4, pod)
    assert "--training.steps 7" in script and "WORKERS=12\n" in script and "RESOURCE=''\n" in script
    assert "$$" not in script  # Kubernetes reads a command, and makes one dollar of two
    job = jobs.find(str(bucket), "bert-tiny")
    assert (bucket / job.package).is_file() and job.project == ""
    assert "on Kubernetes" in tpu("status", "bert-tiny")[1]
    assert "kubectl get jobset" in tpu("watch", "bert-tiny")[2]
    assert "kubectl delete jobset bert-tiny" in tpu("delete", "bert-tiny")[1]


def test_slices_and_options_that_gke_does_not_have(submit) -> None:
    submit("--accelerator", "v2", "--topology", "4x4", wrong="a chip that GKE offers, found v2")
    alone = "slices of several hosts, which are the only ones that GKE joins, found v5e:2x4*2"
    submit("--accelerator", "v5e", "--topology", "2x4", "--slices", 2, wrong=alone)
    for option in (("--reserved",), ("--valid_until", "1h"), ("--label", "a=b"), ("--tpu_vm", "v")):
        submit("--accelerator", "v5e", "--topology", "4x4", *option, wrong=f"Expected no {option[0]} with --kubernetes")


def test_starts_without_a_new_checkpoint_between_them_end_a_job(bucket: Path) -> None:
    job = job_of(bucket, project="", attempts=3)
    for step in (None, 5, 5, 6, 7, 8, 8):
        if step:
            (bucket / "run" / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
        starts.count(job)
        assert jobs.verdict(job) is None, step
    starts.count(job)
    assert "lost 3 times without a checkpoint after step 8" in jobs.verdict(job).reason
