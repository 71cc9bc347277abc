"""Rows of full sentences (RoBERTa section 4.2, FULL-SENTENCES; fairseq's break mode `complete`).

The documents are joined into one text with a separator between them. Rows are cut from it one after the other: each
ends with the last sentence that fits, and the next begins after it. So a row is identified by its start. The starts
are computed once and saved, eight bytes per row.

Deviation: a separator stands between documents and at the end of a row, as in the paper. In fairseq's files it ends
every line of the input, which need not be a document.
Deviation: a sentence longer than a row is cut into rows; fairseq makes it a row by itself, too long for the model.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts.joined_text import JoinedText
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError

SPECIAL_TOKENS = 2  # <s> sentences </s>
_VERSION = 1
_WINDOW = 1 << 20
_BEGINS = np.dtype("<i8")


@dataclasses.dataclass(frozen=True)
class FullSentences(Layout):
    """<s> sentence sentence ... </s>, as many whole sentences as fit in a row (RoBERTa section 4.2, FULL-SENTENCES).

    Sentences are in the order of the text and continue across document boundaries, where an additional </s> is
    inserted. A row is one sequence and adds no fields.
    """

    shortest = 3  # <s> token </s>

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return FullSentenceRows(dataset, split, self, sequence_length=length, vocabulary=vocabulary)


class FullSentenceRows(LayoutRows):
    """Rows <s> sentence sentence ... </s> that cover all of the text in order (see `FullSentences`)."""

    def __init__(
        self, dataset: Dataset, split: str, layout: FullSentences, *, sequence_length: int, vocabulary: Vocabulary
    ):
        layout.check(sequence_length)
        if vocabulary.cls < 0 or vocabulary.sep < 0:
            raise UserError(
                "Expected a tokenizer with <s> and </s>, or tokens that serve as them, for the layout FullSentences, "
                "found one without; use a byte-bpe tokenizer or another layout."
            )
        text = dataset.split(split)
        self._text = JoinedText(text, vocabulary.sep)
        self._length = sequence_length
        self._vocabulary = vocabulary
        settings = {
            "version": _VERSION,
            "dataset": dataset.fingerprint,
            "split": split,
            "layout": "full sentences",
            "sequence_length": sequence_length,
        }
        build = functools.partial(_build, text, sequence_length - SPECIAL_TOKENS)
        self._begins = dataset.index(settings, build)("rows.bin", _BEGINS) if text.documents else np.zeros(1, _BEGINS)
        self.count = len(self._begins) - 1

    def fields(self, rows: np.ndarray) -> Fields:
        begins, following = self._begins[rows], self._begins[rows + 1]
        starts = self._text.starts
        # The separator after a document is left out if the row ends with the document.
        stops = following - (starts[np.searchsorted(starts, following)] == following)
        lengths = stops - begins
        input_ids = np.full((len(rows), self._length), max(self._vocabulary.pad, 0), np.int32)
        self._text.copy(begins, stops, input_ids[:, 1:])
        input_ids[:, 0] = self._vocabulary.cls
        input_ids[np.arange(len(rows)), lengths + 1] = self._vocabulary.sep
        place = np.arange(self._length, dtype=np.int32)
        real = place < (lengths + SPECIAL_TOKENS)[:, None]
        return {"input_ids": input_ids, "segment_ids": real.astype(np.int32), "positions": place * real}


def _build(split: Split, capacity: int, folder: Path) -> None:
    with open(folder / "rows.bin", "wb") as file:
        for begins in row_begins(split, capacity):
            file.write(begins.astype(_BEGINS))


def row_begins(split: Split, capacity: int) -> Iterator[np.ndarray]:
    """Yield the starts of rows of at most `capacity` tokens in the joined text, and last the text's size, int64.

    The successor of the row that starts at each sentence is computed for a window of sentences at once. Then the real
    rows are found by following the successors.
    """
    # Offsets at which a row may end, and the start of the next row; the first is the end of the rows found so far.
    ends = nexts = np.zeros(1, np.int64)
    for first in range(0, split.sentences, _WINDOW):
        last = min(first + _WINDOW, split.sentences)
        more_ends, more_nexts = _boundaries(split, first, last, capacity)
        ends, nexts = np.concatenate([ends, more_ends]), np.concatenate([nexts, more_nexts])
        # A row that is not full at the window's end may hold sentences of the next window.
        known = len(ends) - 1 if last == split.sentences else np.searchsorted(nexts + capacity, ends[-1])
        reach = (np.searchsorted(ends, nexts + capacity, "right") - 1).tolist()
        rows, place = [], 0
        while place < known:
            rows.append(place)
            place = reach[place]
        yield nexts[rows]
        ends, nexts = ends[place:], nexts[place:]
    yield nexts


def _boundaries(split: Split, first: int, last: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of sentences first..last-1 in the joined text, and the start of the text after each.

    A sentence of more than `capacity` tokens also ends every `capacity` tokens. A separator after a document is
    skipped.
    """
    documents = np.searchsorted(split.document_offsets, np.arange(first, last + 1), "right") - 1
    offsets = np.asarray(split.sentence_offsets[first : last + 1])
    starts, stops = offsets[:-1] + documents[:-1], offsets[1:] + documents[:-1]
    pieces = -(-(stops - starts) // capacity)
    sentence = np.repeat(np.arange(last - first), pieces)
    number = np.arange(len(sentence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    ends = np.minimum(starts[sentence] + (number + 1) * capacity, stops[sentence])
    closes = (documents[1:] > documents[:-1])[sentence] & (ends == stops[sentence])
    return ends, ends + closes
