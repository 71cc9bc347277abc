"""Rows of cells of a cooccurrence count, for GloVe."""

import dataclasses
from pathlib import Path

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence
from plmjax.data.cooccurrence import Cells, Counting
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, float32, int32
from plmjax.data.store import Dataset
from plmjax.errors import FRACTION, UserError, check_ranges, listed


@dataclasses.dataclass(frozen=True)
class Cooccurrences(Layout):
    """Rows of T cells in shuffled order. The text itself is not read.

    input_ids, context_ids int32 [B T], the words of row and column; cooccurrences float32 [B T], above 0, or 0 for
    padding cells; row_ids int32 [B].
    """

    in_pieces = False

    path: str = ""
    """Folder of plmjax cooccurrence. If empty, the counts go to the folder `cooccurrence` of the prepared dataset."""
    window: int = 10
    """Number of words on each side."""
    symmetric: bool = True
    """If true, count words on both sides; else only on the left."""
    min_count: int = 5
    """Minimum number of occurrences in the training text for a word to be counted."""
    held_out: float = 0.0
    """Fraction of the cells held out for evaluation, each with its mirror cell, besides the held-out documents."""

    def __post_init__(self) -> None:
        check_ranges("data.layout", self, held_out=FRACTION)
        self._counting()

    def prepare(self, dataset: Dataset, vocabulary: Vocabulary) -> None:
        """Count the text, unless `path` names a count or the text was counted before.

        Raises:
            UserError: the tokens are not words, or an error of `count`.
        """
        if not self.path:
            cooccurrence.check_words(vocabulary, dataset.directory)
            cooccurrence.count(dataset, vocabulary.special, self._folder(dataset), self._counting())

    def target_counts(self, dataset: Dataset, vocabulary: Vocabulary) -> np.ndarray:
        """Return the counts of the words that have cells, scaled to the sum of all cells and rounded, int64 [V]."""
        times = np.array(dataset.unigram_counts(), np.float64)
        times[list(vocabulary.special)] = 0
        times[times < self.min_count] = 0
        return np.rint(times * (self._cells(dataset).total / max(times.sum(), 1))).astype(np.int64)

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        """Return the rows of a split. The split "validation" holds the held-out cells.

        Raises:
            UserError: there is no finished count, or it belongs to another text or other settings.
        """
        self.check(length)
        return CooccurrenceRows(self._cells(dataset), split, self.held_out, length)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        shape = (batch_size, sequence_length)
        words = {"input_ids": int32(*shape), "context_ids": int32(*shape)}
        return words | {"cooccurrences": float32(*shape), "row_ids": int32(batch_size)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a global batch of cells of random words."""
        made, shape = super().synthetic(batch_size, sequence_length, vocab_size, seed), (batch_size, sequence_length)
        random = np.random.default_rng(seed + 1)
        return {
            "input_ids": made["input_ids"],
            "context_ids": random.permutation(made["input_ids"].ravel()).reshape(shape),
            "cooccurrences": np.exp(random.normal(size=shape)).astype(np.float32),
            "row_ids": made["row_ids"],
        }

    def _counting(self) -> Counting:
        return Counting(self.window, self.symmetric, self.min_count)

    def _folder(self, dataset: Dataset) -> Path:
        return Path(self.path) if self.path else dataset.directory / "cooccurrence"

    def _cells(self, dataset: Dataset) -> Cells:
        cells = cooccurrence.open_cells(self._folder(dataset))
        if cells.dataset != dataset.fingerprint:
            raise UserError(
                f"Expected a count of the text in {dataset.directory}, found that {cells.directory} counts another; "
                "name the dataset that was counted or count again."
            )
        differing = [
            f"--data.layout.{field.name} {getattr(cells.counting, field.name)}"
            for field in dataclasses.fields(Counting)
            if getattr(cells.counting, field.name) != getattr(self, field.name)
        ]
        if differing:
            raise UserError(
                f"Expected {cells.directory} to have the settings of the experiment, found {listed(differing)}; set "
                "these or count again into another folder."
            )
        return cells


class CooccurrenceRows(LayoutRows):
    """Row r has the cells `r*T .. r*T + T - 1` of the split, in shuffled order.

    The last cells are held out. In training, a last row that is not full is dropped; in held-out cells it is filled
    with zeros.
    """

    def __init__(self, cells: Cells, split: str, held_out: float, length: int):
        self._cells, self._length = cells, length
        cut = cells.count - int(cells.count * held_out)
        if 0 < cut < cells.count:  # a cell and its mirror stay together
            before, after = cells.read(cut - 1, cut + 1)
            cut += bool(before["row"] == after["column"] and before["column"] == after["row"])
        self._first, self._last = (0, cut) if split == "train" else (cut, cells.count)
        size = self._last - self._first
        self.count = size // length if split == "train" else -(-size // length)

    def fields(self, rows: np.ndarray) -> Fields:
        found = np.zeros((len(rows), self._length), cooccurrence.CELL)
        for place, row in enumerate(rows):
            start = self._first + int(row) * self._length
            cells = self._cells.read(start, min(start + self._length, self._last))
            found[place, : len(cells)] = cells
        names = {"input_ids": "row", "context_ids": "column", "cooccurrences": "value"}
        return {name: np.ascontiguousarray(found[part]) for name, part in names.items()}
