"""Rows of full sentences against a plain walk through the text; every token once; any row at once."""

import numpy as np
import pytest

from plmjax.data import pipeline
from plmjax.data.layouts import FullSentences, full_sentences
from tests.data.corpora import assert_same, phase, write
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


def test_any_step_is_found_at_once(dataset, monkeypatch):
    """From the index that was made before, which is not worked out again."""
    batches = pipeline.DatasetSource(LAYOUT, dataset, WORDS, seed=3).train(phase(64, 8), 0)
    run = [next(batches) for _ in range(9)]
    batches.close()
    monkeypatch.setattr(full_sentences, "row_begins", lambda *arguments: pytest.fail("worked out again"))
    late = pipeline.DatasetSource(LAYOUT, dataset, WORDS, seed=3).train(phase(64, 8), len(run) - 1)
    assert_same(next(late), run[-1])
    late.close()
