"""Rows of sequences: pairs unpacked and packed against plain versions of themselves; and the index on disk."""

import shutil

import numpy as np
import pytest

from plmjax.data import packing
from plmjax.data.layouts import SentenceOrder, SentencePairs, sentence_pairs
from tests.data.corpora import assert_same, documents, write
from tests.data.layouts.rows import TEXTS, WORDS, V, all_fields, rows_of


def texts_of(fields):
    """(tokens, token types, label) of every sequence in some rows, row after row, checked for its place in the row."""
    found = []
    (task,) = (name.removesuffix("_labels") for name in fields if name.endswith("_labels"))
    for row, segments in enumerate(fields["segment_ids"]):
        begin, used = 0, int((fields[f"{task}_weights"][row] > 0).sum())
        for slot in range(used):
            length = int((segments == slot + 1).sum())
            here = slice(begin, begin + length)
            assert length and (segments[here] == slot + 1).all() and fields["cls_positions"][row, slot] == begin
            np.testing.assert_array_equal(fields["positions"][row, here], np.arange(length))
            tokens, types = (fields[name][row, here].tolist() for name in ("input_ids", "token_type_ids"))
            found.append((tuple(tokens), tuple(types), int(fields[f"{task}_labels"][row, slot])))
            begin += length
        assert set(fields[f"{task}_weights"][row]) <= {0.0, 1.0}
        for name in ("input_ids", "segment_ids", "positions", "token_type_ids"):
            assert not fields[name][row, begin:].any(), name  # padding; this vocabulary's pad is 0
        for name in ("cls_positions", f"{task}_labels", f"{task}_weights"):
            assert not fields[name][row, used:].any(), name
    return found


def test_a_pair_is_laid_out_as_published(dataset):
    layout, split = SentencePairs(duplicates=2), dataset.split("train")
    drawn = np.concatenate(list(sentence_pairs.draw_pairs(split, layout, 64, seed=0, passes=2)))
    rows = rows_of(dataset, layout)
    assert rows.count == len(drawn)
    for pair, (tokens, types, label) in zip(drawn, texts_of(all_fields(rows)), strict=True):
        places = ((pair[f"{part}_start"], pair[f"{part}_length"]) for part in "ab")
        a, b = (split.tokens(start, start + length).tolist() for start, length in places)
        assert list(tokens) == [WORDS.cls, *a, WORDS.sep, *b, WORDS.sep]
        assert list(types) == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert label == pair["label"]


@pytest.mark.parametrize(("kind", "pack"), [(SentencePairs, 8), (SentenceOrder, 3)])
def test_packed_pairs_are_the_unpacked_ones(dataset, monkeypatch, kind, pack):
    monkeypatch.setattr(packing, "_WINDOW", 500)
    single = rows_of(dataset, kind(duplicates=2, short_probability=0.5))
    packed = rows_of(dataset, kind(duplicates=2, short_probability=0.5, pack=pack))
    assert packed.count < 0.95 * single.count
    assert sorted(texts_of(all_fields(packed))) == sorted(texts_of(all_fields(single)))


def test_the_index_is_made_once_and_named_by_what_it_depends_on(tmp_path, monkeypatch):
    dataset = write(tmp_path / "one", TEXTS["train"], TEXTS["validation"], vocab_size=V)
    layout = SentencePairs(duplicates=3)
    before = all_fields(rows_of(dataset, layout))
    rows_of(dataset, layout, split="validation")
    monkeypatch.setattr(sentence_pairs, "draw_pairs", lambda *_, **named: pytest.fail("drawn again"))
    assert_same(all_fields(rows_of(dataset, layout)), before)
    swapped = SentenceOrder(duplicates=3, random_next_probability=0.5, swap_probability=0.0)
    shorter = SentencePairs(duplicates=3, short_probability=0.2)
    rows_of(dataset, SentencePairs(duplicates=7), split="validation", seed=5)  # one pass, the same for every run
    for made, changed in ((layout, {"seed": 1}), (layout, {"length": 65}), (shorter, {}), (swapped, {})):
        with pytest.raises(pytest.fail.Exception):
            rows_of(dataset, made, **changed)
    other = write(tmp_path / "other", TEXTS["train"][1:], TEXTS["validation"], vocab_size=V)
    shutil.copytree(tmp_path / "one" / "index", tmp_path / "other" / "index")
    with pytest.raises(pytest.fail.Exception):
        rows_of(other, layout)


def test_an_interrupted_or_damaged_index_is_made_again(tmp_path, monkeypatch):
    dataset = write(tmp_path, documents(10, V), [], vocab_size=V)

    def interrupted(*arguments, **named):
        yield np.zeros(3, sentence_pairs.PAIR)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sentence_pairs, "draw_pairs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rows_of(dataset, SentencePairs())
    assert list((tmp_path / "index").iterdir()) == []
    before = all_fields(rows_of(dataset, SentencePairs(pack=2)))
    (path,) = (tmp_path / "index").glob("*/sequences.bin")
    contents = path.read_bytes()
    for damaged in (contents[:-1], contents[:8] + bytes([contents[8] ^ 1]) + contents[9:]):
        path.write_bytes(damaged)
        assert_same(all_fields(rows_of(dataset, SentencePairs(pack=2))), before)
