"""A job for Kubernetes: a JobSet with one Job per slice and one Pod per host. Each Pod runs the startup script.

jobset.sigs.k8s.io, API jobset.x-k8s.io/v1alpha2; docs.cloud.google.com/kubernetes-engine/docs/concepts/tpus.
"""

from typing import Any

from plmjax.errors import UserError
from tpu import startup
from tpu.job import Job

PORTS = {"libtpu": 8471, "coordinator": 8482}
"""Ports of libtpu and jax.distributed for connections between the hosts."""
STORAGE = "20Gi"
"""Disk space that a pod requests on its node. JAX and TensorFlow take 3 GB, their downloads 2 GB during installation,
and the rest is for data. About half of a node's default 100 GB is left for pods. A request is not a limit: a pod that
uses more is not evicted for that.
"""
RESTARTS = 1000
"""Number of restarts of a JobSet, more than any job needs: four preemptions a day are usual on spot slices.

It counts all restarts of a job. `--attempts` counts those without a new checkpoint between them (tpu/starts.py).
"""


def manifest(job: Job, image: str) -> dict[str, Any]:
    """Return the JobSet of a job. image: name of the container image.

    Raises:
        UserError: GKE does not offer the chip, or does not join slices of one host.
    """
    slices = job.slice
    if not slices.chip.label:
        raise UserError(
            f"Expected a chip that GKE offers, found {slices.chip.name}; choose another --accelerator, or leave out "
            f"--kubernetes."
        )
    if job.slices > 1 and slices.hosts == job.slices:
        raise UserError(
            f"Expected slices of several hosts, which are the only ones that GKE joins, found {slices.name}; choose a "
            f"larger --topology, or --slices 1."
        )
    selector = {
        "cloud.google.com/gke-tpu-accelerator": slices.chip.label,
        "cloud.google.com/gke-tpu-topology": job.topology,
    }
    container = {
        "name": "worker",
        "image": image,
        "command": ["bash", "-c", startup.render(job)],
        "ports": [{"name": name, "containerPort": port} for name, port in PORTS.items()],
        "resources": {
            "requests": {"ephemeral-storage": STORAGE},
            "limits": {"google.com/tpu": slices.chips // slices.hosts},
        },
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 300,  # SIGTERM saves a checkpoint first
        "nodeSelector": selector,
        "containers": [container],
    }
    if job.slices > 1:
        # Slices communicate over the data center network. The network of the pods is slow.
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if job.service_account:
        pod["serviceAccountName"] = job.service_account
    if job.spot:
        selector["cloud.google.com/gke-spot"] = "true"
        taint = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        pod["tolerations"] = [taint]
    hosts = {
        "parallelism": job.hosts,
        "completions": job.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        # A worker exits with 2 when the job has failed for good, and with anything else when its machine is lost.
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "worker", "operator": "In", "values": [2]},
                }
            ]
        },
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "labels": {"app.kubernetes.io/managed-by": "plmjax"},
            # All hosts of a slice are in one node pool, and no two slices are in the same pool.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": RESTARTS,
                "rules": [
                    {"name": "failedForGood", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
                ],
            },
            "replicatedJobs": [{"name": "slice", "replicas": job.slices, "template": {"spec": hosts}}],
        },
    }


def to_yaml(job: Job, image: str) -> str:
    """Return the JobSet as YAML for kubectl, with a readable script."""
    try:
        import yaml
    except ImportError:
        raise UserError("Expected PyYAML for --kubernetes, found none; run pip install 'plmjax[tpu]'.") from None

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block, line by line."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(manifest(job, image), Dumper=Dumper, sort_keys=False, width=120)
