"""Fixtures of the tests of data."""

import pytest

from plmjax.data import tokenizers
from plmjax.data.formats.corpora import CORPORA
from tests.data.formats.published import DECLARED
from tests.data.random_texts import document


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer of 200 tokens that knows every word of `document`."""
    texts = [document(seed) for seed in range(40)]
    return tokenizers.train("wordpiece", 200, texts, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def small_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    """The declarations of small corpora in place of those of the published ones."""
    for name, corpus in DECLARED.items():
        monkeypatch.setitem(CORPORA, name, corpus)
