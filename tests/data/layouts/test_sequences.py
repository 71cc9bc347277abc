"""Rows of sequences: pairs unpacked and packed against plain versions of themselves; and the index on disk."""

import os
from pathlib import Path

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import packing, store
from plmjax.data.layouts import Blocks, Layout, SentenceOrder, SentencePairs, sentence_pairs
from plmjax.errors import UserError
from tests.data.corpora import documents, write

V = 300
WORDS = Vocabulary.placeholder(V)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(40, V), documents(8, V, seed=1), V)


def rows_of(dataset, layout, length=64, split="train", vocabulary=WORDS, seed=0):
    return layout.rows(dataset, split, length, vocabulary, seed)


def all_fields(rows):
    return rows.fields(np.arange(rows.count))


def texts_of(fields):
    """(tokens, token types, label) of every sequence in some rows, row after row, checked for its place in the row."""
    found = []
    (task,) = (name.removesuffix("_labels") for name in fields if name.endswith("_labels"))
    for row in range(len(fields["input_ids"])):
        segments, begin = fields["segment_ids"][row], 0
        used = int((fields[f"{task}_weights"][row] > 0).sum())
        for slot in range(used):
            length = int((segments == slot + 1).sum())
            here = slice(begin, begin + length)
            assert length and (segments[here] == slot + 1).all()
            assert fields["cls_positions"][row, slot] == begin
            np.testing.assert_array_equal(fields["positions"][row, here], np.arange(length))
            label = int(fields[f"{task}_labels"][row, slot])
            tokens, types = (fields[name][row, here].tolist() for name in ("input_ids", "token_type_ids"))
            found.append((tuple(tokens), tuple(types), label))
            begin += length
        assert set(fields[f"{task}_weights"][row]) <= {0.0, 1.0}
        for name in ("input_ids", "segment_ids", "positions", "token_type_ids"):
            assert not fields[name][row, begin:].any(), name  # padding; this vocabulary's pad is 0
        for name in ("cls_positions", f"{task}_labels", f"{task}_weights"):
            assert not fields[name][row, used:].any(), name
    return found


@pytest.mark.parametrize("kind", [SentencePairs, SentenceOrder])
def test_a_pair_is_laid_out_as_published(dataset, kind):
    layout, split = kind(duplicates=2), dataset.split("train")
    drawn = np.concatenate(list(sentence_pairs.draw_pairs(split, layout, 64, 0, 2)))
    rows = rows_of(dataset, layout)
    assert rows.count == len(drawn)
    for pair, (tokens, types, label) in zip(drawn, texts_of(all_fields(rows)), strict=True):
        a, b = (
            split.tokens(pair[f"{part}_start"], pair[f"{part}_start"] + pair[f"{part}_length"]).tolist()
            for part in "ab"
        )
        assert list(tokens) == [WORDS.cls, *a, WORDS.sep, *b, WORDS.sep]
        assert list(types) == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert label == pair["label"]


@pytest.mark.parametrize(("kind", "pack"), [(SentencePairs, 2), (SentencePairs, 8), (SentenceOrder, 3)])
def test_packed_pairs_are_the_unpacked_ones(dataset, monkeypatch, kind, pack):
    monkeypatch.setattr(packing, "_WINDOW", 500)
    single = rows_of(dataset, kind(duplicates=2, short_probability=0.5))
    packed = rows_of(dataset, kind(duplicates=2, short_probability=0.5, pack=pack))
    assert packed.count < 0.95 * single.count
    assert sorted(texts_of(all_fields(packed))) == sorted(texts_of(all_fields(single)))


def test_pairs_packed_into_a_row_come_from_all_over_the_text(dataset):
    rows = rows_of(dataset, SentencePairs(duplicates=2, short_probability=1.0, pack=3))
    starts = rows._records["a_start"][rows._offsets[:-1]]
    seconds = rows._records["a_start"][np.minimum(rows._offsets[:-1] + 1, len(rows._records) - 1)]
    assert abs(np.corrcoef(starts, seconds)[0, 1]) < 0.3


def test_the_index_is_made_once_and_named_by_what_it_depends_on(dataset, monkeypatch):
    layout = SentencePairs(duplicates=3)
    before = all_fields(rows_of(dataset, layout))
    rows_of(dataset, layout, split="validation")
    monkeypatch.setattr(sentence_pairs, "draw_pairs", lambda *arguments: pytest.fail("drawn again"))
    for name, array in all_fields(rows_of(dataset, layout)).items():
        np.testing.assert_array_equal(array, before[name])
    for changed in ({"seed": 1}, {"length": 65}):
        with pytest.raises(pytest.fail.Exception):
            rows_of(dataset, layout, **changed)
    with pytest.raises(pytest.fail.Exception):
        rows_of(dataset, SentencePairs(duplicates=3, short_probability=0.2))
    with pytest.raises(pytest.fail.Exception):
        rows_of(dataset, SentenceOrder(duplicates=3, random_next_probability=0.5, swap_probability=0.0))
    rows_of(dataset, SentencePairs(duplicates=7), split="validation", seed=5)  # one pass, the same for every run
    monkeypatch.setattr(dataset, "fingerprint", "another text in the same folder")
    with pytest.raises(pytest.fail.Exception):
        rows_of(dataset, layout)


def test_an_interrupted_index_is_made_again(tmp_path, monkeypatch):
    dataset = write(tmp_path, documents(10, V), [], V)

    def interrupted(*arguments):
        yield np.zeros(3, sentence_pairs.PAIR)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sentence_pairs, "draw_pairs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rows_of(dataset, SentencePairs())
    assert list((tmp_path / "index").iterdir()) == []
    assert rows_of(dataset, SentencePairs()).count > 3


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_index_is_made_again(tmp_path, damage):
    dataset = write(tmp_path, documents(10, V), [], V)
    before = all_fields(rows_of(dataset, SentencePairs(pack=2)))
    (path,) = (tmp_path / "index").glob("*/sequences.bin")
    contents = path.read_bytes()
    path.write_bytes(contents[:-1] if damage == "truncated" else contents[:8] + bytes([contents[8] ^ 1]) + contents[9:])
    for name, array in all_fields(rows_of(dataset, SentencePairs(pack=2))).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_dataset_that_may_not_be_written_to_is_indexed_in_the_cache_folder(tmp_path, monkeypatch):
    dataset = write(tmp_path / "dataset", documents(10, V), [], V)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make = Path.mkdir

    def read_only(self, *arguments, **settings):  # the tests may run as root, whom no file mode stops
        if dataset.directory in self.parents:
            raise PermissionError(13, os.strerror(13), str(self))
        return make(self, *arguments, **settings)

    monkeypatch.setattr(Path, "mkdir", read_only)
    count = rows_of(dataset, SentencePairs()).count
    assert count and len(list((tmp_path / "cache/plmjax/index").iterdir())) == 1
    assert rows_of(dataset, SentencePairs()).count == count


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    dataset = write(tmp_path, documents(10, V), [], V)

    def full(*arguments):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(sentence_pairs, "draw_pairs", full)
    with pytest.raises(UserError, match=r"Expected to write the index .*No space left"):
        rows_of(dataset, SentencePairs())


@pytest.mark.parametrize(
    "layout, length, vocabulary, message",
    [
        (SentencePairs(), 4, WORDS, "rows of 5 to 65538 tokens .* length of 4;"),
        (SentencePairs(), 70_000, WORDS, "rows of 5 to 65538 tokens .* length of 70000;"),
        (SentencePairs(), 64, Vocabulary(size=V, end=2), r"\[CLS\] and \[SEP\]"),
    ],
)
def test_layouts_that_cannot_be_are_named(dataset, layout, length, vocabulary, message):
    with pytest.raises(UserError, match=message):
        rows_of(dataset, layout, length, vocabulary=vocabulary)


def test_an_unknown_layout_is_refused(dataset):
    with pytest.raises(NotImplementedError, match=r"Layout must define `rows`\."):
        rows_of(dataset, Layout())


def test_pieces_of_any_size_give_the_same_rows(tmp_path, monkeypatch):
    texts = documents(30, V)
    whole = write(tmp_path / "whole", texts, [], V, shards=1)
    monkeypatch.setattr(store.writer, "PIECE_TOKENS", 700)
    parts = write(tmp_path / "parts", texts, [], V, shards=4)
    for layout in (SentencePairs(duplicates=2), SentencePairs(duplicates=2, pack=3), Blocks()):
        expected, found = all_fields(rows_of(whole, layout)), all_fields(rows_of(parts, layout))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("number", [13, 28], ids=os.strerror)
def test_a_folder_that_no_index_can_be_made_in_is_named(number, tmp_path, monkeypatch):
    """A disk that is full, or no folder at all that may be written to."""
    dataset = write(tmp_path, documents(10, V), [], V)

    def refused(self, *arguments, **settings):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(UserError, match=f"Expected room for the index of {tmp_path} in .*{os.strerror(number)}"):
        rows_of(dataset, SentencePairs())


def test_nobody_writes_into_an_index_that_is_read(dataset):
    rows = rows_of(dataset, SentencePairs(pack=2))
    assert not rows._records.flags.writeable and not rows._offsets.flags.writeable
