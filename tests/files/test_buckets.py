"""The client of buckets: its process, and what it cannot reach or may not use.

The service is `tests/object_store.py`, reached by the client that reaches the real one.
"""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax.files import buckets
from tests.object_store import ObjectStore
from tests.small_runs import SMALL_BERT

TINY = "experiments/bert_tiny.py"


def test_a_process_that_forks_goes_on_in_a_bucket(object_store: ObjectStore, bucket: str) -> None:
    """As each of many hosts does after its command's paths were read."""
    program = f"""
import os
from plmjax.files import storage
path = storage.path("gs://{bucket}/file")
if not os.fork():
    storage.write(path, "of the child")
    os._exit(path.read_text() != "of the child")
assert os.wait()[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_a_bucket_that_cannot_be_used(
    fails: Callable[..., str],
    object_store: ObjectStore,
    bucket: str,
    small_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "gs://missing, found none of that name" in fails("pretrain", TINY, "--workdir", "gs://missing/run")
    assert "gs://missing, found none" in fails(
        "pretrain", TINY, "--workdir", tmp_path / "x", "--data.path", "gs://missing/x"
    )
    object_store.deny("forbidden", 403, "caller does not have storage.buckets.get access")
    assert "gs://forbidden, found it forbidden" in fails("report", "gs://forbidden/run", code=69)
    object_store.deny("private", 401, "Anonymous caller does not have storage.buckets.get access")
    assert "credentials for gs://private" in fails("export", small_run, "gs://private/export", code=69)
    assert f"gs://{bucket}/run" in fails("evaluate", f"gs://{bucket}/run")
    object_store.deny("readable", 403, "caller does not have storage.objects.create access", ("POST", "PUT"))
    assert "gs://readable, found it forbidden" in fails("export", small_run, "gs://readable/export", code=69)
    assert "gs://readable, found it forbidden" in fails(
        "pretrain", TINY, "--workdir", "gs://readable/run", "--data.path", small_run / "dataset", *SMALL_BERT, code=69
    )
    with socket.socket() as taken:  # bound and never listened to
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert "gs://distant, found the service out of reach" in fails(
            "fill-mask", "gs://distant/run", "a [MASK]", code=69
        )


def test_a_bucket_without_its_client(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    buckets._client_of.cache_clear()
    assert "pip install 'plmjax[gcs]'" in fails("evaluate", "gs://bucket/run")
    buckets._client_of.cache_clear()


class Answer(Exception):
    """An error of the client with a status."""

    def __init__(self, code: object) -> None:
        super().__init__(f"status {code}")
        self.code = code


Answer.__module__ = "gcsfs.retry"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        *(
            (Answer(code), code in (401, 403, 408, 410, 429) or code >= 500)
            for code in (400, 401, 403, 404, 408, 410, 412, 429, 500, 503)
        ),
        (Answer("408"), True),
        (Answer("401"), True),  # metadata servers refuse tokens for some seconds
        (Answer(None), True),
        (ConnectionResetError("reset by peer"), True),
        (FileNotFoundError("b/x/o/y"), False),
        (OSError("Forbidden: https://storage"), True),
        (ValueError("of our own"), False),
    ],
)
def test_errors_that_may_be_gone_at_the_next_try(error: BaseException, passes: bool) -> None:
    assert buckets.may_pass(error) is passes


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (Answer("401"), "Expected credentials for gs://mine, found none that it takes"),
        (Answer(403), "Expected access to gs://mine, found it forbidden"),
        (OSError("Forbidden: /b/mine/o"), "Expected access to gs://mine, found it forbidden"),
        (Answer(503), "Expected an answer of gs://mine, found an error (status 503); run the same command again."),
        (Answer(None), "Expected an answer for gs://mine, found the service out of reach (status None)"),
        (FileNotFoundError("b/mine"), "Expected the bucket gs://mine, found none of that name"),
        (FileNotFoundError("b/mine/o/file"), None),
        (ValueError("of our own"), None),
    ],
)
def test_an_error_of_the_client_is_a_sentence(error: BaseException, sentence: str | None) -> None:
    found = buckets.explained(error, "mine")
    assert found is None if sentence is None else str(found).startswith(sentence)
