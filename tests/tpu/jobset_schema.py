"""The API server's checks of the fields that our JobSets use, as JSON schema; any other field is refused.

Names, kinds and enumerations follow the Go types of jobset.x-k8s.io/v1alpha2 (kubernetes-sigs/jobset,
api/jobset/v1alpha2/jobset_types.go) and of Kubernetes' batch/v1 and core/v1. Beyond their structure it holds what the
webhooks of JobSet and of Kubernetes demand: a pod failure policy wants pods that are never restarted, an indexed Job
as many completions as pods at once.
"""

DNS_LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
LABELS = {
    "type": "object",
    "propertyNames": {"pattern": "^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"},
    "additionalProperties": {"type": "string", "pattern": "^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"},
}


def structure(required: str = "", **properties: object) -> dict:
    """A closed object."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


CONTAINER = structure(
    "name image",
    name=DNS_LABEL,
    image={"type": "string", "minLength": 1},
    command={"type": "array", "items": {"type": "string"}},
    ports={
        "type": "array",
        "items": structure(
            "containerPort",
            name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"},
            containerPort={"type": "integer", "minimum": 1, "maximum": 65535},
        ),
    },
    resources=structure(
        requests=structure(
            "ephemeral-storage", **{"ephemeral-storage": {"type": "string", "pattern": "^[1-9][0-9]*(Ki|Mi|Gi|Ti)?$"}}
        ),
        limits=structure("google.com/tpu", **{"google.com/tpu": {"enum": [1, 4, 8]}}),
    ),
)
TOLERATION = structure(
    key={"type": "string"},
    operator={"enum": ["Exists", "Equal"]},
    value={"type": "string"},
    effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
)
POD = structure(
    "containers restartPolicy nodeSelector",
    restartPolicy={"const": "Never"},
    terminationGracePeriodSeconds=COUNT,
    nodeSelector=LABELS,
    hostNetwork={"type": "boolean"},
    dnsPolicy={"enum": ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]},
    serviceAccountName=DNS_LABEL,
    tolerations={"type": "array", "items": TOLERATION},
    containers={"type": "array", "items": CONTAINER, "minItems": 1},
)
EXIT_CODES = structure(
    "operator values",
    containerName=DNS_LABEL,
    operator={"enum": ["In", "NotIn"]},
    values={"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 255}, "minItems": 1},
)
JOB = structure(
    "template parallelism completions",
    parallelism=COUNT,
    completions=COUNT,
    completionMode={"const": "Indexed"},
    backoffLimit=COUNT,
    podFailurePolicy=structure(
        "rules",
        rules={
            "type": "array",
            "maxItems": 20,
            "items": structure(
                "action", action={"enum": ["FailJob", "FailIndex", "Ignore", "Count"]}, onExitCodes=EXIT_CODES
            ),
        },
    ),
    template=structure("spec", spec=POD),
)
ACTIONS = ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob"]
FAILURE_REASONS = ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded"]
JOBSET = structure(
    "apiVersion kind metadata spec",
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=structure("name", name=DNS_LABEL, labels=LABELS, annotations=TEXTS),
    spec=structure(
        "replicatedJobs",
        network=structure(
            enableDNSHostnames={"type": "boolean"}, publishNotReadyAddresses={"type": "boolean"}, subdomain=DNS_LABEL
        ),
        failurePolicy=structure(
            maxRestarts=COUNT,
            rules={
                "type": "array",
                "items": structure(
                    "name action",
                    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", "maxLength": 128},
                    action={"enum": ACTIONS},
                    onJobFailureReasons={
                        "type": "array",
                        "items": {"enum": [*FAILURE_REASONS, "PodFailurePolicy"]},
                        "uniqueItems": True,
                    },
                ),
            },
        ),
        replicatedJobs={
            "type": "array",
            "minItems": 1,
            "items": structure("name template", name=DNS_LABEL, replicas=COUNT, template=structure("spec", spec=JOB)),
        },
    ),
)
