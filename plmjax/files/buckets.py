"""Google Cloud Storage: the client of buckets, its errors as sentences, and writes that depend on a generation.

plmjax uses one client for all its files, gcsfs (the extra `gcs`): its endpoint and credentials can be chosen, and it
does not need TensorFlow. storage.py reads and writes with this client. Orbax writes arrays with tensorstore's client.
"""

import contextlib
import functools
import logging
import os
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plmjax.errors import Explained, Unavailable, UserError

# The libraries read these variables when they first use a bucket, in this process and in child processes.
os.environ.setdefault("EPATH_USE_TF", "false")  # epath prefers TensorFlow's client, which has a fixed endpoint
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would call another service for every bucket
os.environ.setdefault("FSSPEC_GCS", '{"use_listings_cache": false}')  # others write to the bucket too

SCHEME = "gs://"
_TENSORSTORE = re.compile(
    r"(ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED|PERMISSION_DENIED|UNAUTHENTICATED): "
)
"""Beginning of tensorstore's errors that may be temporary, although it has retried for a quarter of an hour."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def client() -> Any:
    """Return the client of this process, a file system of fsspec."""
    return _client_of(os.getpid())


@functools.cache
def _client_of(process: int) -> Any:
    """Return the client of a process. A forked process needs a new one: it has no thread and no connections."""
    try:
        import fsspec
        import gcsfs  # noqa: F401 (fsspec opens buckets with it)
    except ImportError:
        raise UserError(f"Expected gcsfs for a path in {SCHEME}, found none; pip install 'plmjax[gcs]'.") from None
    for name in ("gcsfs", "google.auth"):  # they log the errors that they raise
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return fsspec.filesystem("gcs", finalize_on_close=True)


def check(text: str) -> None:
    """Raise UserError if the bucket of a gs:// path does not exist, and Unavailable if it does not answer."""
    bucket = text.removeprefix(SCHEME).partition("/")[0]
    if not _NAME.fullmatch(bucket):
        raise UserError(
            f"Expected {SCHEME}BUCKET/PATH with a name of 3 letters or more (a-z, digits, dots, dashes), found "
            f"{text}; check the name."
        )
    _check(bucket, client().base)


@functools.cache
def _check(bucket: str, service: str) -> None:
    """Check that the bucket exists and may be read; `service` is the address of the storage service.

    The client itself would retry for half a minute before it reports a service that does not respond.
    """
    address = urlsplit(service)
    port = address.port or {"http": 80, "https": 443}[address.scheme]
    for attempt in range(3):
        try:
            socket.create_connection((address.hostname, port), timeout=10).close()
            break
        except OSError as error:
            if attempt == 2:
                raise unreachable(bucket, error) from error
            time.sleep(0.5)
    try:
        client().call("GET", "b/{}", bucket)
    except Exception as error:
        other = UserError(f"Expected to open {SCHEME}{bucket}, found: {error}; name another bucket.")
        raise explain(error, bucket) or other from error


def generation(path: Path) -> tuple[int, str]:
    """Return (generation, text) of an object in a bucket; 0 if there is none. Every write changes the generation."""
    bucket, _, name = os.fspath(path).removeprefix(SCHEME).partition("/")
    place = ("GET", "b/{}/o/{}", bucket, name)
    while True:
        try:
            found = client().call(*place, json_out=True)["generation"]
        except FileNotFoundError:
            return 0, ""
        with contextlib.suppress(FileNotFoundError):  # The object was replaced between the two calls.
            return int(found), client().call(*place, alt="media", generation=found)[1].decode("utf-8")


def replace(path: Path, contents: str, generation: int) -> int:
    """Write an object in a bucket if it still has this generation; 0 means that it must not exist.

    Returns:
        the new generation, or 0 if the object has another generation than the given one.
    """
    bucket, _, name = os.fspath(path).removeprefix(SCHEME).partition("/")
    address = client().base.replace("/storage/v1/", "/upload/storage/v1/") + f"b/{bucket}/o"
    settings = {"uploadType": "media", "name": name, "ifGenerationMatch": str(generation)}
    try:
        made = client().call("POST", address, data=contents.encode("utf-8"), json_out=True, **settings)
    except FileExistsError:  # The client raises it if the generation differs.
        return 0
    return int(made["generation"])


def may_pass(error: BaseException) -> bool:
    """Return whether an error of the client may be temporary."""
    return isinstance(explain(error), Unavailable)


def explain(error: BaseException, bucket: str = "") -> Explained | None:
    """Return a one-sentence error for an error of the client, or None for other errors.

    A refusal of credentials or permissions may be temporary too: metadata servers refuse tokens for a while, and
    changed permissions take minutes to apply.
    """
    named = re.search(r"(?:/b/|gs://|^b/)([^/?\s'\"]+)", str(error))
    bucket = bucket or (named[1] if named else "")
    where = f"{SCHEME}{bucket}" if bucket else "the bucket"
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, FileNotFoundError):  # The client raises it for a bucket, with its path in the API.
        missing = UserError(f"Expected the bucket {where}, found none of that name; check the name or create it.")
        return missing if re.fullmatch(r"b/[^/]*(/o)?", str(error)) else None
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) and SCHEME in text and (found := _TENSORSTORE.match(text)):
        return Unavailable(
            f"Expected an answer of {where}, found an error ({found[1]}: {text.partition(' [')[0][-120:]}); run the "
            f"same command again."
        )
    if isinstance(error, OSError) and text.startswith("Forbidden"):
        status = 403
    elif module in ("gcsfs", "aiohttp", "google", "requests", "fsspec"):
        status = getattr(error, "code", None)
        status = int(status) if str(status).isdigit() else None
    elif isinstance(error, ConnectionError | TimeoutError):
        status = None
    else:
        return None
    if status == 401:
        return Unavailable(
            f"Expected credentials for {where}, found none that it takes; run `gcloud auth application-default login`, "
            f"or name a key file in GOOGLE_APPLICATION_CREDENTIALS."
        )
    if status == 403:
        return Unavailable(
            f"Expected access to {where}, found it forbidden; ask for the roles storage.objectUser and "
            f"storage.legacyBucketReader there, or name another bucket."
        )
    if status is None:
        return unreachable(bucket, error)
    # 410 is an upload whose session was lost: a new upload succeeds.
    kind = Unavailable if status in (408, 410, 429) or status >= 500 else UserError
    return kind(f"Expected an answer of {where}, found an error ({text[:200]}); run the same command again.")


def unreachable(bucket: str, error: BaseException) -> Unavailable:
    """Return the error for a storage service that does not answer."""
    reason = " ".join(str(error).split())[:120]
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    what = f"STORAGE_EMULATOR_HOST ({emulator})" if emulator else "the network"
    where = f"for {SCHEME}{bucket}" if bucket else "from the network"
    return Unavailable(f"Expected an answer {where}, found the service out of reach ({reason}); check {what}.")
