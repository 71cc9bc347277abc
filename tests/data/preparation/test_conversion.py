"""Documents in batches, and their tokens in runs of about one size, with documents and streams of unequal sizes."""

import hashlib
from types import SimpleNamespace

import numpy as np

from plmjax.data import store
from plmjax.data.preparation.conversion import Conversion, Sizes, Tokenized, _runs, _selected, split_of

SENTENCES = {"source": [[2, 1], [4], [1, 1], [6], [1]], "target": [[1], [1, 1], [2], [2, 2, 1], [3]]}
"""Stream -> the number of tokens of each sentence of five documents."""


def tokens(documents: list[list[int]], first: int) -> store.Tokens:
    lengths = [length for document in documents for length in document]
    counts = np.array([len(document) for document in documents])
    return store.Tokens(np.arange(first, first + sum(lengths)), np.array(lengths), counts)


def texts_of(part: store.Tokens) -> list[list[list[int]]]:
    sentences = iter(np.split(part.ids, np.cumsum(part.sentence_lengths)[:-1]))
    return [[next(sentences).tolist() for _ in range(count)] for count in part.document_lengths.tolist()]


PART = Tokenized({name: tokens(own, 100 * n) for n, (name, own) in enumerate(SENTENCES.items())}, {"n": np.arange(5)})


def test_a_run_ends_with_the_document_that_reaches_its_size_in_all_streams() -> None:
    """The documents have 4, 6, 4, 11 and 4 tokens of both streams: 10, 25 and 29 up to an end."""
    (whole,) = _runs(PART, None)
    assert whole is PART
    runs = list(_runs(PART, 10))
    assert [run.fields["n"].tolist() for run in runs] == [[0, 1], [2, 3], [4]]
    for name, part in PART.texts.items():
        assert [text for run in runs for text in texts_of(run.texts[name])] == texts_of(part)
        assert [len(run.texts[name].document_lengths) for run in runs] == [2, 2, 1]
    assert [run.fields["n"].tolist() for run in _runs(PART, 29)] == [[0, 1, 2, 3, 4]]
    assert [run.fields["n"].tolist() for run in _runs(PART, 11)] == [[0, 1, 2], [3], [4]]


def test_documents_that_are_left_out_take_their_sentences_and_tokens_with_them() -> None:
    kept = np.array([True, False, True, False, True])
    for part in PART.texts.values():
        every = texts_of(part)
        assert texts_of(_selected(part, kept)) == [every[0], every[2], every[4]]
        assert _selected(part, np.ones(5, bool)) is part


def test_a_batch_is_full_at_exactly_its_size() -> None:
    documents = [SimpleNamespace(text="x" * size) for size in (4, 6, 3, 9, 2)]
    found = Conversion._batches(SimpleNamespace(sizes=Sizes(batch_characters=10)), documents)
    assert [[len(document.text) for document in batch] for batch in found] == [[4, 6], [3, 9], [2]]


def test_a_document_is_held_out_by_the_hash_of_its_sentences() -> None:
    """Below the share alone, which a hash of 53 bits can equal."""
    text = ["A first one.", "Another."]
    share = int.from_bytes(hashlib.blake2b(b"A first one.\nAnother.", digest_size=8).digest(), "little") / 2**64
    assert split_of(text, share * (1 - 1e-12)) == "train" and split_of(text, share * (1 + 1e-12)) == "validation"
    assert split_of(text, 0.0) == "train"
