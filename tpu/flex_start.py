"""Requests for flex-start slices, which run for a limited time, by Cloud TPU's REST interface.

provisioningModel and runDuration are fields of v2alpha1 alone, and google-cloud-tpu 1.28 has them in none of its API
versions. Their names are from Cloud's published description of tpu.googleapis.com, v2alpha1. Such a resource is
followed and deleted like any other (tpu/queue.py). docs.cloud.google.com/tpu/docs/request-using-flex-start.
"""

import json
import os
import time
from typing import Any

from tpu.job import Job

ENDPOINT = "TPU_REST_ENDPOINT"
"""Environment variable with the address of a service that replaces Google's in rehearsals, without credentials."""
TIMEOUT = 60
PATIENCE = 300.0
"""Seconds to wait for the operation that creates a resource. After them, the resource's state shows the result."""
SLICES = {"multisliceParams": "multiNodeParams"}
"""Name of a field in v2 -> its name in v2alpha1."""


def address(job: Job) -> str:
    """Return the address to which a request is posted."""
    host = os.environ.get(ENDPOINT) or "https://tpu.googleapis.com"
    place = f"projects/{job.project}/locations/{job.zone}"
    return f"{host}/v2alpha1/{place}/queuedResources?queuedResourceId={job.name}"


def body(job: Job, request: Any) -> dict[str, Any]:
    """Return the JSON to post. request: the CreateQueuedResourceRequest of v2, without the terms of flex-start."""
    text = type(request).to_json(request, always_print_fields_with_no_presence=False)
    resource = json.loads(text)["queuedResource"]
    for specification in resource["tpu"]["nodeSpec"]:
        for old, new in SLICES.items():
            if old in specification:
                specification[new] = specification.pop(old)
    duration = {"maxRunDuration": f"{job.max_run_seconds}s"}
    return resource | {"provisioningModel": "FLEX_START", "runDuration": duration}


def create(job: Job, request: Any) -> None:
    """Request a job's slices and wait until the resource exists.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service refuses.
    """
    from google.api_core import exceptions

    session, place = _session(), address(job)
    query = f"&requestId={request.request_id}"
    try:
        answer = session.post(place + query, json=body(job, request), timeout=TIMEOUT)
        operation = _check(answer)
        end = time.monotonic() + PATIENCE
        while not operation.get("done") and time.monotonic() < end:
            time.sleep(2)
            operation = _check(session.get(f"{place.partition('/projects/')[0]}/{operation['name']}", timeout=TIMEOUT))
    except OSError as error:  # the base of all errors of a connection
        raise exceptions.ServiceUnavailable(str(error)) from error
    if failed := operation.get("error"):
        raise exceptions.from_grpc_status(failed["code"], failed.get("message", ""))


def _session() -> Any:
    if os.environ.get(ENDPOINT):
        import requests

        return requests.Session()
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return AuthorizedSession(credentials)


def _check(answer: Any) -> dict[str, Any]:
    """Return the JSON of an answer, or raise its error as other calls of Cloud TPU raise theirs."""
    import grpc
    from google.api_core import exceptions

    if answer.ok:
        return answer.json()
    try:
        error = answer.json()["error"]
        code = grpc.StatusCode[error["status"]]
    except (ValueError, KeyError, TypeError):  # the answer of a gateway, which has another form than Cloud's
        raise exceptions.from_http_response(answer) from None
    raise exceptions.from_grpc_status(code, error.get("message", ""))
