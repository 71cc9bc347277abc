"""Rows of full sentences against a plain walk through the text; every token once; any row at once."""

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, pipeline, store
from plmjax.data.layouts import FullSentences, full_sentences
from plmjax.errors import UserError
from tests.data.corpora import documents, phase, write

V = 300
WORDS = Vocabulary.placeholder(V)
CLS, SEP = WORDS.cls, WORDS.sep
TEXTS = documents(40, V), documents(8, V, seed=1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), *TEXTS, V)


def rows_of(dataset, length, split="train", vocabulary=WORDS):
    return FullSentences().rows(dataset, split, length, vocabulary, seed=0)


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


@pytest.mark.parametrize("window", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("length", [3, 10, 41, 64, 1000, 20_000])
def test_rows_are_those_of_the_published_walk(dataset, monkeypatch, length, window):
    monkeypatch.setattr(full_sentences, "_WINDOW", window)
    found = np.concatenate(list(full_sentences.row_begins(dataset.split("train"), length - 2)))
    rows = rows_of(dataset, length)
    np.testing.assert_array_equal(rows._begins, found)
    fields = rows.fields(np.arange(rows.count))
    expected = walk(TEXTS[0], length - 2)
    assert rows.count == len(expected)
    for ids, segments, positions, text in zip(*(fields[name] for name in fields), expected, strict=True):
        size = len(text) + 2
        assert ids[:size].tolist() == [CLS, *text, SEP]
        assert (segments[:size] == 1).all() and positions[:size].tolist() == list(range(size))
        assert not ids[size:].any() and not segments[size:].any() and not positions[size:].any()
    assert {name: field.dtype for name, field in fields.items()} == dict.fromkeys(fields, np.dtype(np.int32))


@pytest.mark.parametrize("length", [12, 64])
@pytest.mark.parametrize(("split", "texts"), zip(("train", "validation"), TEXTS, strict=True))
def test_every_sentence_is_kept_once_and_in_order(dataset, split, texts, length):
    rows = rows_of(dataset, length, split)
    ids = rows.fields(np.arange(rows.count))["input_ids"]
    kept = ids[~np.isin(ids, [CLS, SEP, WORDS.pad])]
    np.testing.assert_array_equal(kept, [token for document in texts for sentence in document for token in sentence])


def test_separators_stand_between_documents_and_not_at_the_edge_of_a_row():
    """Deviation named in the module: only where a document ends, and once."""
    rows = walk([[[7, 7], [8]], [[9, 9]], [[5], [6]]], capacity=6)
    assert rows == [[7, 7, 8, SEP, 9, 9], [5, 6]], "the oracle itself"
    assert walk([[[7] * 6], [[9, 9]]], capacity=6) == [[7] * 6, [9, 9]]


def test_sentences_are_whole_unless_longer_than_a_row(dataset):
    """Deviation named in the module: such a sentence is cut, and what is left of it is followed by others."""
    length = 30
    fields = (rows := rows_of(dataset, length)).fields(np.arange(rows.count))
    text = dataset.split("train")
    begins, boundaries = rows._begins[:-1], set()
    for document in range(text.documents):
        first, last = text.document_offsets[document : document + 2]
        boundaries.update((text.sentence_offsets[first:last] + document).tolist())
    cut = [row for row, begin in enumerate(begins.tolist()) if begin not in boundaries]
    assert 0 < len(cut) < rows.count
    for row in cut:
        assert (fields["segment_ids"][row - 1] == 1).all(), "the row before is full of the same sentence"


def test_an_epoch_holds_every_row_once_and_any_step_is_found_at_once(dataset, monkeypatch):
    source = pipeline.DatasetSource(FullSentences(), dataset, WORDS, seed=3)
    size = 8
    count = rows_of(dataset, 64).count
    batches = source.train(phase(64, size), 0)
    run = [next(batches) for _ in range(2 * count // size)]
    batches.close()
    seen = np.concatenate([batch["row_ids"] for batch in run])
    assert sorted(seen[:count]) == list(range(count))
    assert seen[:count].tolist() != list(range(count)) and seen[:count].tolist() != seen[count : 2 * count].tolist()

    monkeypatch.setattr(full_sentences, "row_begins", lambda *arguments: pytest.fail("worked out again"))
    resumed = pipeline.DatasetSource(FullSentences(), dataset, WORDS, seed=3)
    asked = []
    monkeypatch.setattr(order, "permute", lambda places, *rest: asked.append(len(places)) or permute(places, *rest))
    late = resumed.train(phase(64, size), len(run) - 1)
    for name, array in next(late).items():
        np.testing.assert_array_equal(array, run[-1][name], err_msg=name)
    late.close()
    assert set(asked) == {size}, "the step's rows and no others"


permute = order.permute


def test_held_out_rows_come_once_each(dataset):
    source = pipeline.DatasetSource(FullSentences(), dataset, WORDS, seed=3)
    batches = list(source.evaluation(phase(64, 16)))
    ids = np.concatenate([batch["row_ids"] for batch in batches])
    assert ids[ids >= 0].tolist() == list(range(rows_of(dataset, 64, "validation").count))
    assert not batches[-1]["segment_ids"][batches[-1]["row_ids"] < 0].any()


def test_pieces_of_any_size_give_the_same_rows(tmp_path, monkeypatch):
    whole = write(tmp_path / "whole", TEXTS[0], [], V, shards=1)
    monkeypatch.setattr(store.writer, "PIECE_TOKENS", 700)
    parts = write(tmp_path / "parts", TEXTS[0], [], V, shards=4)
    expected, found = (rows.fields(np.arange(rows.count)) for rows in (rows_of(whole, 64), rows_of(parts, 64)))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_split_without_text_has_no_rows(tmp_path):
    assert rows_of(write(tmp_path, TEXTS[0][:2], [], V), 16, "validation").count == 0


@pytest.mark.parametrize(
    ("length", "vocabulary", "message"),
    [(2, WORDS, "rows of 3 to .* length of 2;"), (64, Vocabulary(size=V, end=2), "tokenizer with <s> and </s>")],
)
def test_rows_that_cannot_be_are_named(dataset, length, vocabulary, message):
    with pytest.raises(UserError, match=message):
        rows_of(dataset, length, vocabulary=vocabulary)


def test_an_index_of_another_text_in_the_same_folder_is_not_used(dataset, monkeypatch):
    rows_of(dataset, 64)
    monkeypatch.setattr(full_sentences, "row_begins", lambda *arguments: pytest.fail("made again"))
    rows_of(dataset, 64)
    monkeypatch.setattr(dataset, "fingerprint", "another text")
    with pytest.raises(pytest.fail.Exception):
        rows_of(dataset, 64)
