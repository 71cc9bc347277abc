"""The rows of a split: how many there are under a layout, which one stands where, and its fields.

Sentence pairs are drawn once and kept as an index of token runs in a cache folder, as are the places where rows of full
sentences begin; blocks and streams are closed form.
"""

import dataclasses
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from plmjax.data import order, pairs
from plmjax.data.cache import cached, mapped
from plmjax.data.full_sentences import FullSentenceRows
from plmjax.data.joined_text import JoinedText
from plmjax.data.layouts import Blocks, FullSentences, Layout, SentencePairs, Streams
from plmjax.data.rows import Fields, Rows
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary

_INDEX_VERSION = 1
_WINDOW = 1 << 16
_EVALUATION_SEED = 0  # held-out rows are the same for every run


def open_rows(
    dataset: Dataset, split: str, layout: Layout, sequence_length: int, vocabulary: Vocabulary, seed: int
) -> Rows:
    """The rows of a split. Training is drawn from `seed`; the validation split is passed over once, always alike.

    Raises UserError when the tokenizer lacks a token that the layout needs or the rows are too short for it. A split
    with too little text has no rows: count is 0.
    """
    if isinstance(layout, SentencePairs):
        return PairRows(dataset, split, layout, sequence_length, vocabulary, seed)
    if isinstance(layout, FullSentences):
        return FullSentenceRows(dataset, split, sequence_length, vocabulary)
    if isinstance(layout, Streams):
        return StreamRows(dataset.split(split), sequence_length, vocabulary, whole=split == "train")
    if isinstance(layout, Blocks):
        return BlockRows(dataset.split(split), sequence_length, vocabulary, whole=split == "train")
    raise TypeError(f"no rows are defined for the layout {type(layout).__name__}.")


class PairRows(Rows):
    """[CLS] A [SEP] B [SEP], one or several to a row (see `layouts.SentencePairs`)."""

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        layout: SentencePairs,
        sequence_length: int,
        vocabulary: Vocabulary,
        seed: int,
    ):
        if vocabulary.cls < 0 or vocabulary.sep < 0:
            raise UserError(
                "Sentence pairs need a tokenizer with [CLS] and [SEP] or tokens that serve as them, but this one "
                "lacks them; use a wordpiece tokenizer or another layout."
            )
        shortest, longest = pairs.SPECIAL_TOKENS + 2, pairs.SPECIAL_TOKENS + (1 << 16) - 1
        if not shortest <= sequence_length <= longest:
            raise UserError(
                f"Sentence pairs need a sequence length of {shortest} to {longest}, but data.sequence_length is "
                f"{sequence_length}; change it."
            )
        self._split = dataset.split(split)
        self._length = sequence_length
        self._pack = layout.pack
        self._labels = layout.labels
        self._vocabulary = vocabulary
        training = split == "train"
        settings = {
            "version": _INDEX_VERSION,
            "dataset": dataset.fingerprint,
            "split": split,
            "layout": dataclasses.asdict(layout) | {"duplicates": layout.duplicates if training else 1},
            "sequence_length": sequence_length,
            "seed": seed if training else _EVALUATION_SEED,
        }
        build = functools.partial(_build_pairs, self._split, layout, settings)
        folder = cached(dataset.directory / "index", settings, build) if self._split.documents else None
        self._pairs = np.empty(0, pairs.PAIR) if folder is None else mapped(folder / "pairs.bin", pairs.PAIR)
        self._offsets = mapped(folder / "rows.bin", np.dtype("<i8")) if folder and layout.pack > 1 else None
        self.count = len(self._pairs) if self._offsets is None else len(self._offsets) - 1

    def fields(self, rows: np.ndarray) -> Fields:
        length, size = self._length, len(rows)
        if self._offsets is None:
            which, present = rows[:, None], np.ones((size, 1), bool)  # [B K]
        else:
            slots = np.arange(self._pack)
            first = self._offsets[rows]
            present = slots < (self._offsets[rows + 1] - first)[:, None]
            which = np.where(present, first[:, None] + slots, first[:, None])
        pair = self._pairs[which]  # [B K]
        a_length = np.where(present, pair["a_length"].astype(np.int64) + 2, 0)  # [CLS] A [SEP]
        b_length = np.where(present, pair["b_length"].astype(np.int64) + 1, 0)  # B [SEP]
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
        flat, tokens = input_ids.ravel(), self._split.tokens
        chosen = pair[row, slot]
        places = ((row * length + begin + 1).tolist(), (row * length + middle).tolist())
        for part, at in zip("ab", places, strict=True):
            starts, counts = chosen[f"{part}_start"].tolist(), chosen[f"{part}_length"].tolist()
            for place, start, count in zip(at, starts, counts, strict=True):
                flat[place : place + count] = tokens(start, start + count)
        return {
            "input_ids": input_ids,
            "segment_ids": segment_ids,
            "positions": positions,
            "token_type_ids": spread(np.where(padding, 0, slots % 2)),
            "cls_positions": np.where(present, begins, 0).astype(np.int32),
            f"{self._labels}_labels": np.where(present, pair["label"], 0).astype(np.int32),
            f"{self._labels}_weights": present.astype(np.float32),
        }


def _build_pairs(split: Split, layout: SentencePairs, settings: dict, folder: Path) -> None:
    length, seed = settings["sequence_length"], settings["seed"]
    drawn = folder / "pairs.bin"
    with open(drawn, "wb") as file:
        for part in pairs.draw_pairs(split, layout, length, seed, settings["layout"]["duplicates"]):
            file.write(part)
    if layout.pack > 1:
        source = drawn.rename(folder / "unpacked.bin")
        _pack_pairs(source, folder, length, layout.pack, seed)
        source.unlink()


def _pack_pairs(source: Path, folder: Path, sequence_length: int, most: int, seed: int) -> None:
    """Packs windows of pairs from all over the corpus, lest the pairs of one row be neighbours."""
    unpacked = mapped(source, pairs.PAIR)
    key = order.fold(seed, 0)

    def window(start: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.arange(start, min(start + _WINDOW, len(unpacked)))
        chosen = unpacked[order.permute(places, len(unpacked), key)]
        lengths = chosen["a_length"].astype(np.int64) + chosen["b_length"] + pairs.SPECIAL_TOKENS
        sequence, sizes = pairs.pack(lengths, sequence_length, most)
        return chosen[sequence], sizes

    end = np.zeros(1, np.int64)
    with open(folder / "pairs.bin", "wb") as packed, open(folder / "rows.bin", "wb") as rows:
        rows.write(end)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for chosen, sizes in pool.map(window, range(0, len(unpacked), _WINDOW)):
                packed.write(chosen)
                ends = end + np.cumsum(sizes)
                rows.write(ends)
                end = ends[-1:]


class BlockRows(Rows):
    """Row r holds tokens r*T..r*T+T of the documents joined by the end token (see `layouts.Blocks`).

    whole: leave out a last row that is not full. Otherwise it is padded and what follows its end is not asked for.
    """

    def __init__(self, split: Split, sequence_length: int, vocabulary: Vocabulary, *, whole: bool):
        end = vocabulary.end if vocabulary.end >= 0 else vocabulary.sep
        if end < 0:
            raise UserError(
                "Blocks of text need a tokenizer with an end or separator token between documents, but this one has "
                "neither; use another tokenizer."
            )
        self._pad = max(vocabulary.pad, 0)
        self._text = JoinedText(split, end)
        self._length = sequence_length
        targets = max(self._text.size - 1, 0)
        self.count = targets // sequence_length if whole else -(-targets // sequence_length)

    def fields(self, rows: np.ndarray) -> Fields:
        length = self._length
        text = np.full((len(rows), length + 1), self._pad, np.int32)
        start = rows * length
        stop = np.minimum(start + length + 1, self._text.size)
        self._text.copy(start, stop, text)
        real = np.arange(length) < (stop - start - 1)[:, None]
        return {
            "input_ids": np.where(real, text[:, :-1], self._pad),
            "segment_ids": real.astype(np.int32),
            "positions": np.where(real, np.arange(length), 0).astype(np.int32),
            "next_ids": np.where(real, text[:, 1:], self._pad),
            "next_weights": real.astype(np.float32),
        }


class StreamRows(BlockRows):
    """Blocks in the order of the text: place b of a batch goes on where place b of the batch before it ended.

    The text is cut into as many runs of equal length as the batch has places; each epoch begins the same runs again.
    """

    def train(self, step: int, batch_size: int, rows: np.ndarray, key: np.ndarray) -> np.ndarray:
        steps = self.count // batch_size
        return rows * steps + step % steps

    def evaluation(self, step: int, batch_size: int, rows: np.ndarray) -> np.ndarray:
        numbers = rows * self.evaluation_steps(batch_size) + step
        return np.where(numbers < self.count, numbers, -1)
