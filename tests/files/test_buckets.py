"""The client of buckets: its process, and what it cannot reach or may not use.

The service is `tests/object_store.py`, reached by the client that reaches the real one.
"""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plmjax.files import buckets, patience
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
    ("error", "passes", "sentence"),
    [
        *((Answer(code), True, "an answer of gs://mine, found an error") for code in (408, 410, 429, "503")),
        (Answer(412), False, "an answer of gs://mine, found an error (status 412); run the same"),
        (Answer("401"), True, "credentials for gs://mine, found none that it takes"),
        (Answer(403), True, "access to gs://mine, found it forbidden"),
        (Answer(None), True, "an answer for gs://mine, found the service out of reach (status None)"),
        (ConnectionResetError("reset by peer"), True, "an answer for gs://mine"),
        (OSError("Forbidden: /b/mine/o"), True, "access to gs://mine, found it forbidden"),
        (FileNotFoundError("b/mine"), False, "the bucket gs://mine, found none of that name"),
        (FileNotFoundError("b/mine/o/file"), False, ""),
        (ValueError("of our own"), False, ""),
    ],
    ids=repr,
)
def test_errors_of_the_client(error: BaseException, passes: bool, sentence: str) -> None:
    """Those that may be gone at the next try, and those that are a sentence."""
    assert buckets.may_pass(error) is passes
    assert str(buckets.explain(error, "mine")).startswith(f"Expected {sentence}" if sentence else "None")


def test_the_waits_between_tries_double() -> None:
    """Each by a random factor, so that many hosts do not return at once."""
    for wait, middle in zip(patience.waits(1.0, 16.0), (1, 2, 4, 8, 16, 16, 16), strict=False):
        assert 0.5 <= wait / middle <= 1.5
