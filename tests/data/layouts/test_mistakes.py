"""Rows that cannot be, and texts that have none."""

from pathlib import Path

import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, layouts
from tests.data.corpora import documents, write
from tests.data.layouts.rows import WORDS, V, rows_of
from tests.data.mistakes import refused

END = Vocabulary(size=V, end=2)
ROWS = [
    (layouts.SentencePairs(), 4, WORDS, "5 to 65538 .. 4;"),
    (layouts.SentencePairs(), 70_000, WORDS, "5 to 65538 .. 70000;"),
    (layouts.SentencePairs(), 64, END, "[CLS] and [SEP]"),
    (layouts.SingleSegment(), 64, END, "[CLS] and [SEP] .. SingleSegment"),
    (layouts.ContinuedPairs(), 33, WORDS, "even sequence length .. 33"),
    (layouts.ContinuedPairs(), 32, Vocabulary(V, cls=2, end=3), "[CLS] and [SEP]"),
    (layouts.Documents(shortest_length=70), 64, WORDS, "shortest_length of at most the 64 tokens of a row .. 70;"),
    (layouts.FullSentences(), 64, END, "<s> and </s>"),
    (layouts.Chunks(), 64, Vocabulary(size=V), "or separator token .. neither"),
    (layouts.Chunks(overlap=16), 16, WORDS, "overlap below .. 16 tokens of 16"),
    (layouts.BidirectionalStreams(), 8, Vocabulary(size=V, sep=3), "a begin and an end token"),
    (layouts.Windows(overlap=16), 32, WORDS, "below half the sequence length .. 16 tokens of 32"),
    (layouts.PairedStreams(), 48, WORDS, "'source' .. found text .. --streams"),
    (layouts.PairedStreams("text", "text"), 48, END, "an end token and a begin .. PairedStr"),
]


@pytest.mark.parametrize(("layout", "length", "vocabulary", "parts"), ROWS, ids=str)
def test_rows(layout: layouts.Layout, length: int, vocabulary: Vocabulary, parts: str, dataset) -> None:
    if isinstance(layout, layouts.Windows):
        refused(lambda: layout.check(length), parts)
        layouts.Windows(overlap=15).check(length)
    else:
        refused(lambda: rows_of(dataset, layout, length=length, vocabulary=vocabulary), parts)


def test_settings_and_texts_whose_labels_say_little(tmp_path: Path) -> None:
    """An empty line after every sentence makes it a document: B is always from elsewhere."""
    for make, parts in (
        (lambda: layouts.SentencePairs(pack=0), "--data.layout.pack and --data.layout.duplicates of at least 1"),
        (lambda: layouts.Documents(shortest_length=2), "--data.layout.shortest_length of 0, or at least 3 .. 2;"),
        (lambda: layouts.PairedStreams(start="bos"), "--data.layout.start .. 'bos'"),
        (lambda: layouts.Chunks(overlap=-1), "--data.layout.overlap of 0 or more .. -1"),
        (lambda: layouts.Windows(overlap=0), "overlap of at least 1 .. 0 .. the layout ContiguousStreams"),
        (lambda: layouts.Cooccurrences(held_out=1.5), "--data.layout.held_out from 0 to"),
    ):
        refused(make, parts)
    layout, single, several = layouts.SentencePairs(), [[5, 6, 7]], [[5, 6], [7, 8]]
    alone = write(tmp_path / "alone", [single] * 4, [several] * 2, vocab_size=V)
    refused(lambda: layout.prepare(alone, None), "several sentences .. 4 of one sentence each")
    for name, train, line in (
        ("whole", [several] * 3, None),
        ("one", [several], "the training text has one document, so that random pairs are of it too; an empty line"),
        ("few", [single] * 3 + [several], "75% of the documents of the training text have one sentence"),
    ):
        dataset = write(tmp_path / name, train, [several] * 2, vocab_size=V, shards=1)
        layout.prepare(dataset, None)
        found = list(layout.remarks(dataset))
        assert len(found) == bool(line) and (line or "") in "".join(found)


def test_counts_of_something_else(dataset, tmp_path: Path) -> None:
    other = write(tmp_path / "other", documents(3, V, seed=7), [], vocab_size=V)
    folder = tmp_path / "other" / "cooccurrence"
    cooccurrence.count(other, WORDS.special, folder, cooccurrence.Counting(3, True, 2), processes=1)
    for text, made, parts in (
        (dataset, layouts.Cooccurrences(path=str(folder), window=3, min_count=2), "counts another"),
        (other, layouts.Cooccurrences(path=str(folder)), "--data.layout.window 3, --data.layout.min_count 2"),
        (other, layouts.Cooccurrences(path=str(tmp_path)), "a folder without one"),
    ):
        refused(lambda text=text, made=made: rows_of(text, made, length=16), parts)
