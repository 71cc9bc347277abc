"""Rows of two streams of the same documents, such as a sentence and its translation, for encoder-decoders."""

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, packing
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, float32, int32
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError, nearest, quoted

STARTS = ("begin", "end", "pad")
_NUMBERS = np.dtype("<i8")
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class PairedStreams(Layout):
    """The source of a document for the encoder, with an end token, and its target for the decoder, after a start token.

    Sequences longer than a row are truncated. The fields of every layout belong to the encoder. Adds:
    decoder_input_ids, decoder_segment_ids, decoder_positions int32 [B T]; next_ids int32 [B T], the target token after
    each decoder input, with the end token last; next_weights float32 [B T]. Both sides of a pair have the same segment
    id, from 1 in each row.
    """

    shortest: ClassVar[int] = 2

    source: str = "source"
    """Stream that the encoder reads."""
    target: str = "target"
    """Stream that the decoder predicts."""
    start: str = "begin"
    """First input token of the decoder: begin, end (Transformer, BART) or pad (T5)."""
    pack: int = 1
    """Maximum number of pairs packed into one row."""

    def __post_init__(self) -> None:
        if self.pack < 1:
            raise UserError(f"Expected --data.layout.pack of at least 1, found {self.pack}; change it.")
        if self.start not in STARTS:
            raise UserError(
                f"Expected a token to start with for --data.layout.start, found {quoted(self.start)}; "
                f"{nearest(self.start, STARTS)}"
            )

    def target_counts(self, dataset: Dataset, vocabulary: Vocabulary) -> np.ndarray:
        """Return the counts of the decoder's targets: the target's tokens, and an end token for each document."""
        counts = dataset.unigram_counts(self.target)
        counts[vocabulary.document_end] += dataset.documents("train")
        return counts

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return PairedRows(dataset, split, self, length=length, vocabulary=vocabulary, seed=seed)

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        return 2 * batch_size * sequence_length

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        row = int32(batch_size, sequence_length)
        decoder = {f"decoder_{name}": row for name in ("input_ids", "segment_ids", "positions")}
        targets = {"next_ids": row, "next_weights": float32(batch_size, sequence_length)}
        return super().batch(batch_size, sequence_length) | decoder | targets

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return random batches for both sides."""
        encoder, decoder = (
            super(PairedStreams, self).synthetic(batch_size, sequence_length, vocab_size, number)
            for number in (2 * seed, 2 * seed + 1)
        )
        del decoder["row_ids"]
        targets = {"next_ids": np.roll(decoder["input_ids"], -1, axis=1)}
        targets["next_weights"] = np.ones_like(targets["next_ids"], np.float32)
        return encoder | {f"decoder_{name}": array for name, array in decoder.items()} | targets


class PairedRows(LayoutRows):
    """One or several documents of both streams per row (see `PairedStreams`)."""

    def __init__(
        self, dataset: Dataset, split: str, layout: PairedStreams, *, length: int, vocabulary: Vocabulary, seed: int
    ):
        layout.check(length)
        self._end = vocabulary.document_end
        self._start = self._end if layout.start == "end" else getattr(vocabulary, layout.start)
        if min(self._end, self._start) < 0:
            raise UserError(
                f"Expected a tokenizer with an end token and a {layout.start} token for the layout "
                f"{type(layout).__name__}, found one without; use another tokenizer or another --data.layout.start."
            )
        self._pad = max(vocabulary.pad, 0)
        self._length, self._pack = length, layout.pack
        self._source, self._target = dataset.split(split, layout.source), dataset.split(split, layout.target)
        documents = self._source.documents
        self._documents, self._offsets = np.arange(documents), None
        if layout.pack > 1 and documents:
            settings = {
                "version": _VERSION,
                "dataset": dataset.fingerprint,
                "split": split,
                "layout": {"kind": type(layout).__name__, **dataclasses.asdict(layout)},
                "sequence_length": length,
                "seed": seed if split == "train" else 0,  # held-out rows are the same for every run
            }
            build = functools.partial(self._build, order.fold_in(settings["seed"], 0))
            index = dataset.index(settings, build)
            self._documents, self._offsets = index("sequences.bin", _NUMBERS), index("rows.bin", _NUMBERS)
        self.count = len(self._documents) if self._offsets is None else len(self._offsets) - 1

    def fields(self, rows: np.ndarray) -> Fields:
        which, present = packing.slots(self._offsets, rows, self._pack)
        documents = self._documents[which]
        source, target = (_Side(stream, documents, present, self._length) for stream in (self._source, self._target))
        decoder = target.fields | {"input_ids": target.tokens(self._pad, self._start, first=True)}
        return {
            "input_ids": source.tokens(self._pad, self._end, first=False),
            **source.fields,
            **{f"decoder_{name}": array for name, array in decoder.items()},
            "next_ids": target.tokens(self._pad, self._end, first=False),
            "next_weights": (target.fields["segment_ids"] > 0).astype(np.float32),
        }

    def _build(self, key: np.ndarray, folder: Path) -> None:
        def lengths(documents: np.ndarray) -> np.ndarray:  # the longer side must fit
            return np.maximum(*(_lengths(stream, documents, self._length) for stream in (self._source, self._target)))

        packing.write_rows(self._documents, lengths, self._length, max_sequences=self._pack, key=key, folder=folder)


def _lengths(stream: Split, documents: np.ndarray, row_length: int) -> np.ndarray:
    """Return the lengths of documents in a row: with one special token each, and truncated."""
    sizes = stream.document_tokens[documents + 1] - stream.document_tokens[documents]
    return np.minimum(sizes + 1, row_length)


class _Side:
    """The texts of one stream, placed in rows. documents, present: [B K], as from `packing.slots`."""

    def __init__(self, stream: Split, documents: np.ndarray, present: np.ndarray, row_length: int):
        lengths = np.where(present, _lengths(stream, documents, row_length), 0)
        begins, segment_ids, positions = packing.place(lengths, row_length)
        self.fields = {"segment_ids": segment_ids, "positions": positions}
        self._row, slot = np.nonzero(present)
        self._begins = begins[self._row, slot]
        self._sizes = lengths[self._row, slot] - 1
        starts = stream.document_tokens[documents[self._row, slot]]
        stops = starts + self._sizes
        self._texts = [stream.tokens(*ends) for ends in zip(starts.tolist(), stops.tolist(), strict=True)]

    def tokens(self, pad: int, special: int, *, first: bool) -> np.ndarray:
        """Return int32 [B T]: each text with the special token before it if `first`, else after it."""
        ids = np.full(self.fields["segment_ids"].shape, pad, np.int32)
        packing.copy(self._row, self._begins + first, self._texts, ids)
        ids[self._row, self._begins + (0 if first else self._sizes)] = special
        return ids
