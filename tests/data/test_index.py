"""Rows against plain versions of themselves: pairs unpacked and packed, blocks, streams; and the index on disk."""

import os
from pathlib import Path

import numpy as np
import pytest

from plmjax.data import index, pairs, sequence_rows, store
from plmjax.data.layouts import Blocks, Layout, SentenceOrder, SentencePairs, Streams
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary
from tests.data.corpora import documents, write

V = 300
WORDS = Vocabulary.placeholder(V)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(40, V), documents(8, V, seed=1), V)


def rows_of(dataset, layout, length=64, split="train", vocabulary=WORDS, seed=0):
    return index.open_rows(dataset, split, layout, length, vocabulary, seed)


def all_fields(rows):
    return rows.fields(np.arange(rows.count))


def sequences(fields):
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
    drawn = np.concatenate(list(pairs.draw_pairs(split, layout, 64, 0, 2)))
    rows = rows_of(dataset, layout)
    assert rows.count == len(drawn)
    for pair, (tokens, types, label) in zip(drawn, sequences(all_fields(rows)), strict=True):
        a, b = (
            split.tokens(pair[f"{part}_start"], pair[f"{part}_start"] + pair[f"{part}_length"]).tolist()
            for part in "ab"
        )
        assert list(tokens) == [WORDS.cls, *a, WORDS.sep, *b, WORDS.sep]
        assert list(types) == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert label == pair["label"]


@pytest.mark.parametrize(("kind", "pack"), [(SentencePairs, 2), (SentencePairs, 8), (SentenceOrder, 3)])
def test_packed_pairs_are_the_unpacked_ones(dataset, monkeypatch, kind, pack):
    monkeypatch.setattr(sequence_rows, "_WINDOW", 500)
    single = rows_of(dataset, kind(duplicates=2, short_probability=0.5))
    packed = rows_of(dataset, kind(duplicates=2, short_probability=0.5, pack=pack))
    assert packed.count < 0.95 * single.count
    assert sorted(sequences(all_fields(packed))) == sorted(sequences(all_fields(single)))


def test_pairs_packed_into_a_row_come_from_all_over_the_text(dataset):
    rows = rows_of(dataset, SentencePairs(duplicates=2, short_probability=1.0, pack=3))
    starts = rows._records["a_start"][rows._offsets[:-1]]
    seconds = rows._records["a_start"][np.minimum(rows._offsets[:-1] + 1, len(rows._records) - 1)]
    assert abs(np.corrcoef(starts, seconds)[0, 1]) < 0.3


def joined(texts, end):
    return [token for document in texts for token in [*(t for sentence in document for t in sentence), end]]


@pytest.mark.parametrize("length", [1, 7, 64, 1000])
def test_blocks_are_cut_from_the_joined_documents(dataset, length):
    text = joined(documents(40, V), WORDS.end)
    rows = rows_of(dataset, Blocks(), length)
    assert rows.count == (len(text) - 1) // length
    fields = all_fields(rows)
    np.testing.assert_array_equal(fields["input_ids"].ravel(), text[: rows.count * length])
    np.testing.assert_array_equal(fields["next_ids"].ravel(), text[1 : rows.count * length + 1])
    assert (fields["segment_ids"] == 1).all() and (fields["next_weights"] == 1).all()
    np.testing.assert_array_equal(fields["positions"], np.tile(np.arange(length), (rows.count, 1)))


def test_held_out_blocks_ask_for_every_token_once(dataset):
    text = joined(documents(8, V, seed=1), WORDS.end)
    fields = all_fields(rows_of(dataset, Blocks(), 64, "validation"))
    asked = fields["next_weights"] > 0
    assert not asked.all()  # the last row is not full
    np.testing.assert_array_equal(fields["next_ids"][asked], text[1:])
    np.testing.assert_array_equal(fields["input_ids"][asked], text[:-1])
    np.testing.assert_array_equal(fields["segment_ids"], asked)
    for name in ("input_ids", "next_ids", "positions"):
        assert not fields[name][~asked].any(), name


def test_documents_join_with_the_separator_where_there_is_no_end_token(dataset):
    vocabulary = Vocabulary(size=V, sep=4)
    fields = all_fields(rows_of(dataset, Blocks(), 64, vocabulary=vocabulary))
    text = joined(documents(40, V), 4)
    np.testing.assert_array_equal(fields["input_ids"].ravel(), text[: fields["input_ids"].size])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_streams_go_on_from_batch_to_batch(dataset, split):
    rows, size, length = rows_of(dataset, Streams(), 16, split), 6, 16
    places, key = np.arange(size), np.zeros(1, np.uint64)
    steps = rows.count // size if split == "train" else rows.evaluation_steps(size)

    def at(step):
        return rows.train(step, size, places, key) if split == "train" else rows.evaluation(step, size, places)

    for step in range(steps - 1):
        now, after = at(step), at(step + 1)
        now, after = now[after >= 0], after[after >= 0]
        now, after = rows.fields(now), rows.fields(after)
        np.testing.assert_array_equal(now["next_ids"][:, -1], after["input_ids"][:, 0])
        assert now["input_ids"].shape[1] == length
    seen = np.concatenate([at(step) for step in range(steps)])
    assert len(set(seen[seen >= 0].tolist())) == (steps * size if split == "train" else rows.count)
    if split == "train":
        np.testing.assert_array_equal(at(steps), at(0))


def test_the_index_is_made_once_and_named_by_what_it_depends_on(dataset, monkeypatch):
    layout = SentencePairs(duplicates=3)
    before = all_fields(rows_of(dataset, layout))
    rows_of(dataset, layout, split="validation")
    monkeypatch.setattr(pairs, "draw_pairs", lambda *arguments: pytest.fail("drawn again"))
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


def test_an_interrupted_index_is_made_again(tmp_path, monkeypatch):
    dataset = write(tmp_path, documents(10, V), [], V)

    def interrupted(*arguments):
        yield np.zeros(3, pairs.PAIR)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pairs, "draw_pairs", interrupted)
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

    monkeypatch.setattr(pairs, "draw_pairs", full)
    with pytest.raises(UserError, match=r"could not be written to .*No space left"):
        rows_of(dataset, SentencePairs())


@pytest.mark.parametrize(
    "layout, length, vocabulary, message",
    [
        (SentencePairs(), 4, WORDS, "rows of 5 to 65538 tokens .* length of 4;"),
        (SentencePairs(), 70_000, WORDS, "rows of 5 to 65538 tokens .* length of 70000;"),
        (SentencePairs(), 64, Vocabulary(size=V, end=2), r"\[CLS\] and \[SEP\]"),
        (Blocks(), 64, Vocabulary(size=V), "end or separator token"),
        (Streams(), 64, Vocabulary(size=V), "end or separator token"),
    ],
)
def test_layouts_that_cannot_be_are_named(dataset, layout, length, vocabulary, message):
    with pytest.raises(UserError, match=message):
        rows_of(dataset, layout, length, vocabulary=vocabulary)


def test_an_unknown_layout_is_refused(dataset):
    with pytest.raises(TypeError, match="no rows are defined"):
        rows_of(dataset, Layout())


def test_pieces_of_any_size_give_the_same_rows(tmp_path, monkeypatch):
    texts = documents(30, V)
    whole = write(tmp_path / "whole", texts, [], V, shards=1)
    monkeypatch.setattr(store, "PIECE_TOKENS", 700)
    parts = write(tmp_path / "parts", texts, [], V, shards=4)
    for layout in (SentencePairs(duplicates=2), SentencePairs(duplicates=2, pack=3), Blocks()):
        expected, found = all_fields(rows_of(whole, layout)), all_fields(rows_of(parts, layout))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
