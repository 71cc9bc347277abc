"""Rows of sequences of up to two texts, one or several per row, from an index that is drawn once and saved."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, packing
from plmjax.data.cache import memory_map
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows
from plmjax.data.store import Dataset
from plmjax.errors import UserError

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
SHORTEST, LONGEST = 5, 2**16 + 2
"""Row lengths that can hold a sequence: each text has at least one token, and an index stores its length in 16 bits."""

_INDEX_VERSION = 2
_EVALUATION_SEED = 0  # held-out rows are the same for every run


class SequenceRows(LayoutRows):
    """Rows of sequences [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where B is empty.

    A subclass draws the records of the sequences and reads the tokens of a record. Its layout has `pack`, the maximum
    number of sequences in a row. The layout, the split, the length and the seed are set before records are drawn.

    record: dtype of a record, with the fields a_length and b_length, in tokens.
    """

    record: np.dtype

    def __init__(self, dataset: Dataset, split: str, layout: Layout, *, length: int, vocabulary: Vocabulary, seed: int):
        layout.check(length)
        if vocabulary.cls < 0 or vocabulary.sep < 0:
            raise UserError(
                f"Expected a tokenizer with [CLS] and [SEP], or tokens that serve as them, for the layout "
                f"{type(layout).__name__}, found one without; use a wordpiece tokenizer or another layout."
            )
        self._split = dataset.split(split)
        self._layout, self._length, self._pack = layout, length, layout.pack
        self._seed = seed if split == "train" else _EVALUATION_SEED
        self._vocabulary = vocabulary
        settings = {
            "version": _INDEX_VERSION,
            "dataset": dataset.fingerprint,
            "split": split,
            "layout": {"kind": type(layout).__name__, **dataclasses.asdict(layout)},
            "sequence_length": length,
            "seed": self._seed,
        }
        index = dataset.index(settings, self._build) if self._split.documents else None
        self._records = np.empty(0, self.record) if index is None else index("sequences.bin", self.record)
        self._offsets = index("rows.bin", np.dtype("<i8")) if index and self._pack > 1 else None
        self.count = len(self._records) if self._offsets is None else len(self._offsets) - 1

    def draw(self) -> Iterator[np.ndarray]:
        """Yield the records of all sequences. They depend only on the layout, the length and the seed."""
        raise NotImplementedError(f"{type(self).__name__} must define `draw`.")

    def texts(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the tokens of A and of B for each record."""
        raise NotImplementedError(f"{type(self).__name__} must define `texts`.")

    def labels(self, records: np.ndarray, present: np.ndarray) -> Fields:
        """Return the fields that the layout adds, [B K]. `present` is true for records that exist."""
        return {}

    def fields(self, rows: np.ndarray) -> Fields:
        length, size = self._length, len(rows)
        which, present = packing.slots(self._offsets, rows, self._pack)
        records = self._records[which]  # [B K]
        a_length = np.where(present, records["a_length"].astype(np.int64) + 2, 0)  # [CLS] A [SEP]
        b_length = records["b_length"].astype(np.int64)
        b_length = np.where(present, b_length + (b_length > 0), 0)  # B [SEP], or nothing
        begins, segment_ids, positions = packing.place(a_length + b_length, length)
        middles, ends = begins + a_length, begins + a_length + b_length

        # Every row is A, B, A, B, ..., padding.
        runs = np.stack([a_length, b_length], axis=2).reshape(size, 2 * self._pack)
        runs = np.concatenate([runs, length - ends[:, -1:]], axis=1)  # [B 2K+1]
        token_type_ids = packing.spread(np.arange(runs.shape[1]) % 2, runs, length)

        input_ids = np.full((size, length), max(self._vocabulary.pad, 0), np.int32)
        row, slot = np.nonzero(present)
        begin, middle, end = begins[row, slot], middles[row, slot], ends[row, slot]
        input_ids[row, begin] = self._vocabulary.cls
        input_ids[row, middle - 1] = self._vocabulary.sep
        input_ids[row, end - 1] = self._vocabulary.sep
        texts = itertools.chain.from_iterable(self.texts(records[row, slot]))  # A, B, A, B, ...
        packing.copy(np.repeat(row, 2), np.stack([begin + 1, middle], axis=1).ravel(), texts, input_ids)
        return {
            "input_ids": input_ids,
            "segment_ids": segment_ids,
            "positions": positions,
            "token_type_ids": token_type_ids,
            "cls_positions": np.where(present, begins, 0).astype(np.int32),
            **self.labels(records, present),
        }

    def _build(self, folder: Path) -> None:
        path = folder / "sequences.bin"
        with open(path, "wb") as file:
            for part in self.draw():
                file.write(part)
        if self._pack > 1:
            source = path.rename(folder / "unpacked.bin")
            unpacked = memory_map(source, self.record)
            packing.write_rows(
                unpacked,
                _lengths,
                self._length,
                max_sequences=self._pack,
                key=order.fold_in(self._seed, 0),
                folder=folder,
            )
            source.unlink()


def _lengths(records: np.ndarray) -> np.ndarray:
    """Return the number of tokens of each sequence, with special tokens, int64."""
    second = records["b_length"].astype(np.int64)
    return records["a_length"] + second + 2 + (second > 0)
