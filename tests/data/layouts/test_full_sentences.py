"""Rows of full sentences against a plain walk through the text, and of documents cut into sequences."""

import numpy as np
import pytest

from plmjax.data.layouts import Documents, FullSentences, full_sentences
from tests.data.corpora import documents, write
from tests.data.layouts.rows import TEXTS, WORDS, V, all_fields, rows_of

LAYOUT, CLS, SEP = FullSentences(), WORDS.cls, WORDS.sep


def walk(texts, capacity):
    """The published packing as a loop: a row takes sentences while they fit, and a separator where a document ended.

    A sentence too long for an empty row is cut when its turn comes.
    """
    rows, row, apart = [], [], False
    for document in texts:
        for sentence in document:
            separator = [SEP] if row and apart else []
            if row and len(row) + len(separator) + len(sentence) > capacity:
                rows.append(row)
                row, separator = [], []
            while len(sentence) > capacity:
                rows.append(sentence[:capacity])
                sentence = sentence[capacity:]
            row = row + separator + sentence
            apart = False
        apart = True
    return [*rows, row] if row else rows


@pytest.mark.parametrize(
    ("length", "window"), [(3, 1), (10, 7), (41, 1), (64, 1 << 20), (1000, 100), (20_000, 1 << 20)]
)
def test_rows_are_those_of_the_published_walk(tmp_path, monkeypatch, length, window):
    """Deviation named in the module: a sentence longer than a row is cut, and what is left is followed by others."""
    monkeypatch.setattr(full_sentences, "_WINDOW", window)
    dataset = write(tmp_path, TEXTS["train"], TEXTS["validation"], vocab_size=V)
    for split, texts in TEXTS.items():
        fields, expected = all_fields(rows_of(dataset, LAYOUT, length=length, split=split)), walk(texts, length - 2)
        assert len(fields["input_ids"]) == len(expected)
        for ids, segments, positions, text in zip(*(fields[name] for name in fields), expected, strict=True):
            size = len(text) + 2
            assert ids[:size].tolist() == [CLS, *text, SEP]
            assert (segments[:size] == 1).all() and positions[:size].tolist() == list(range(size))
            assert not ids[size:].any() and not segments[size:].any() and not positions[size:].any()
    assert {name: field.dtype for name, field in fields.items()} == dict.fromkeys(fields, np.dtype(np.int32))
    whole = write(tmp_path / "all", TEXTS["train"], [], vocab_size=V)
    assert rows_of(whole, LAYOUT, length=length, split="validation").count == 0


CLS, SEP = WORDS.cls, WORDS.sep


def sequences(layout: Documents, dataset, length: int = 32, seed: int = 0) -> list[np.ndarray]:
    """The tokens of every sequence of all rows, without special tokens."""
    fields, found = all_fields(rows_of(dataset, layout, length=length, seed=seed)), []
    for ids, segments, positions in zip(*(fields[n] for n in ("input_ids", "segment_ids", "positions")), strict=True):
        for number in range(1, segments.max() + 1):
            (places,) = np.nonzero(segments == number)
            assert ids[places[0]] == CLS and ids[places[-1]] == SEP
            assert (positions[places] == np.arange(len(places))).all() and (np.diff(places) == 1).all()
            found.append(ids[places[1:-1]])
    assert "token_type_ids" not in fields
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(50, V, seed=2), documents(4, V), vocab_size=V)


@pytest.mark.parametrize("shortest", [0, 5, 32])
def test_every_token_is_in_one_sequence_of_its_document(shortest, dataset) -> None:
    split = dataset.split("train")
    found = sequences(Documents(pack=1, shortest_length=shortest), dataset)
    assert np.array_equal(np.concatenate(found), split.tokens(0, split.token_count))
    assert set(split.document_tokens[1:].tolist()) <= set(np.cumsum([len(one) for one in found]).tolist())
    assert max(map(len, found)) == 30
    packed = sequences(Documents(pack=4, shortest_length=shortest), dataset)
    assert sorted(one.tolist() for one in packed) == sorted(one.tolist() for one in found)


def test_lengths_are_drawn_between_the_shortest_and_a_rows(tmp_path) -> None:
    """The text is one long document, so that few pieces are shortened by its end."""
    long = [[np.full(5000, 9, np.int32)] * 20]
    dataset = write(tmp_path, long, long, vocab_size=V)
    lengths = np.array([len(one) + 2 for one in sequences(Documents(pack=1, shortest_length=12), dataset, 64)])
    assert lengths[:-1].min() == 12 and lengths.max() == 64
    assert abs(lengths.mean() - 38) < 1.5  # five standard errors of 2,700 draws
    other = np.array([len(one) + 2 for one in sequences(Documents(pack=1, shortest_length=12), dataset, 64, seed=1)])
    assert len(other) != len(lengths) or (other != lengths).any()
