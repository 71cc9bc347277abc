"""Fixtures of the tests of layouts."""

import pytest

from plmjax.data import store
from tests.data.corpora import write
from tests.data.layouts.rows import TEXTS, V


@pytest.fixture(scope="package")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> store.Dataset:
    """Forty documents to train on, and eight that are held out."""
    return write(tmp_path_factory.mktemp("dataset"), TEXTS["train"], TEXTS["validation"], vocab_size=V)
