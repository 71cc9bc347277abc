"""Fixtures of the tests of text that is read in pieces."""

from pathlib import Path

import pytest

from plmjax.data import store
from plmjax.files import storage
from tests.data import corpora
from tests.object_store import ObjectStore

V = 64


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> store.Dataset:
    """A dataset of about thirty pieces in three files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.writer, "PIECE_TOKENS", 750)
        folder = tmp_path_factory.mktemp("written")
        return corpora.write(folder, corpora.documents(75, V), corpora.documents(6, V, seed=1), vocab_size=V)


@pytest.fixture
def served(object_store: ObjectStore, bucket: str, written: store.Dataset) -> str:
    upload(object_store, bucket, written.directory)
    return f"gs://{bucket}/set"


def upload(object_store: ObjectStore, bucket: str, folder: Path) -> None:
    for name, file in storage.files(folder).items():
        object_store.put(bucket, f"set/{name}", file.path.read_bytes())


def limit_of(written: store.Dataset, share: float = 0.56) -> int:
    return int(share * sum(entry["bytes"] for entry in store.all_files(written.manifest).values()))
