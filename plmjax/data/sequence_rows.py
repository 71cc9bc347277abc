"""Rows of sequences of up to two texts, one or several to a row, from an index that is drawn once and kept."""

import dataclasses
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from plmjax.data import order, pairs
from plmjax.data.cache import cached, mapped
from plmjax.data.layouts import Layout
from plmjax.data.rows import Fields, Rows
from plmjax.data.store import Dataset
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary

_INDEX_VERSION = 2
_WINDOW = 1 << 16
_EVALUATION_SEED = 0  # held-out rows are the same for every run


class SequenceRows(Rows):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] where B is empty.

    A subclass draws the records of the sequences and says what tokens a record stands for. Its layout has `pack`, the
    most sequences of a row; it, the split, the length and the seed are known when records are drawn.

    what: how messages name the layout. record: dtype of a record, with the fields a_length and b_length, in tokens.
    """

    what: str
    record: np.dtype

    def __init__(self, dataset: Dataset, split: str, layout: Layout, length: int, vocabulary: Vocabulary, seed: int):
        if vocabulary.cls < 0 or vocabulary.sep < 0:
            raise UserError(
                f"{self.what} need a tokenizer with [CLS] and [SEP] or tokens that serve as them, but this one lacks "
                "them; use a wordpiece tokenizer or another layout."
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
        folder = cached(dataset.directory / "index", settings, self._build) if self._split.documents else None
        self._records = np.empty(0, self.record) if folder is None else mapped(folder / "sequences.bin", self.record)
        self._offsets = mapped(folder / "rows.bin", np.dtype("<i8")) if folder and self._pack > 1 else None
        self.count = len(self._records) if self._offsets is None else len(self._offsets) - 1

    def draw(self) -> Iterator[np.ndarray]:
        """Yields the records of all sequences, a function of the layout, the length and the seed."""
        raise NotImplementedError(f"{type(self).__name__} must say what its sequences are.")

    def texts(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the tokens of A and of B, of each record."""
        raise NotImplementedError(f"{type(self).__name__} must say what its sequences hold.")

    def labels(self, records: np.ndarray, present: np.ndarray) -> Fields:
        """The layout's own fields, [B K]; `present` says which records are there."""
        return {}

    def fields(self, rows: np.ndarray) -> Fields:
        length, size = self._length, len(rows)
        if self._offsets is None:
            which, present = rows[:, None], np.ones((size, 1), bool)  # [B K]
        else:
            slots = np.arange(self._pack)
            first = self._offsets[rows]
            present = slots < (self._offsets[rows + 1] - first)[:, None]
            which = np.where(present, first[:, None] + slots, first[:, None])
        records = self._records[which]  # [B K]
        a_length = np.where(present, records["a_length"].astype(np.int64) + 2, 0)  # [CLS] A [SEP]
        b_length = records["b_length"].astype(np.int64)
        b_length = np.where(present, b_length + (b_length > 0), 0)  # B [SEP], or nothing
        ends = np.cumsum(a_length + b_length, axis=1)
        begins = ends - a_length - b_length

        # Every row is A, B, A, B, ..., padding: the fields that are constant along a run repeat its value.
        runs = np.stack([a_length, b_length], axis=2).reshape(size, -1)
        runs = np.concatenate([runs, length - ends[:, -1:]], axis=1)  # [B 2K+1]
        slots = np.arange(runs.shape[1])
        padding = slots == runs.shape[1] - 1

        def spread(values: np.ndarray) -> np.ndarray:  # [B 2K+1] -> [B T]
            values = np.broadcast_to(values, runs.shape).astype(np.int32)
            return np.repeat(values.ravel(), runs.ravel()).reshape(size, length)

        segment_ids = spread(np.where(padding, 0, slots // 2 + 1))
        origins = np.concatenate([np.repeat(begins, 2, axis=1), np.zeros((size, 1), np.int64)], axis=1)
        positions = (np.arange(length, dtype=np.int32) - spread(origins)) * (segment_ids > 0)

        input_ids = np.full((size, length), max(self._vocabulary.pad, 0), np.int32)
        row, slot = np.nonzero(present)
        begin, middle, end = begins[row, slot], (begins + a_length)[row, slot], ends[row, slot]
        input_ids[row, begin] = self._vocabulary.cls
        input_ids[row, middle - 1] = self._vocabulary.sep
        input_ids[row, end - 1] = self._vocabulary.sep
        flat = input_ids.ravel()
        places = ((row * length + begin + 1).tolist(), (row * length + middle).tolist())
        for at_a, at_b, (a, b) in zip(*places, self.texts(records[row, slot]), strict=True):
            flat[at_a : at_a + len(a)] = a
            flat[at_b : at_b + len(b)] = b
        return {
            "input_ids": input_ids,
            "segment_ids": segment_ids,
            "positions": positions,
            "token_type_ids": spread(np.where(padding, 0, slots % 2)),
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
            self._pack_rows(source, folder)
            source.unlink()

    def _pack_rows(self, source: Path, folder: Path) -> None:
        """Packs windows of sequences from all over the corpus, so that those of one row are no neighbours."""
        unpacked = mapped(source, self.record)
        key = order.fold(self._seed, 0)

        def window(start: int) -> tuple[np.ndarray, np.ndarray]:
            places = np.arange(start, min(start + _WINDOW, len(unpacked)))
            chosen = unpacked[order.permute(places, len(unpacked), key)]
            second = chosen["b_length"].astype(np.int64)
            lengths = chosen["a_length"] + second + 2 + (second > 0)
            sequence, sizes = pairs.pack(lengths, self._length, self._pack)
            return chosen[sequence], sizes

        end = np.zeros(1, np.int64)
        with open(folder / "sequences.bin", "wb") as packed, open(folder / "rows.bin", "wb") as rows:
            rows.write(end)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for chosen, sizes in pool.map(window, range(0, len(unpacked), _WINDOW)):
                    packed.write(chosen)
                    ends = end + np.cumsum(sizes)
                    rows.write(ends)
                    end = ends[-1:]
