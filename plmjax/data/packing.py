"""Packing of several sequences into one row: their assignment to rows, their positions, and the padded row width.

Pretraining and fine-tuning use the same functions for any streams of values. B is the number of rows, T the number of
positions in a row, and K the maximum number of sequences in a row.
"""

import bisect
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plmjax.data import order

_WINDOW = 1 << 16


def padded_width(length: int, longest: int | None) -> int:
    """Return the padded width of rows of this length: 16, 24, 32, 48, 64, 96, ..., at most `longest`.

    longest: number of positions of the model, if it is limited.
    """
    power = 1 << max(length - 1, 8).bit_length()
    width = power * 3 // 4 if power > 16 and length <= power * 3 // 4 else power
    return width if longest is None else min(width, longest)


def pack(lengths: np.ndarray, row_length: int, max_sequences: int) -> tuple[np.ndarray, np.ndarray]:
    """Assign sequences to rows: first the longest that is left, then repeatedly the longest that still fits.

    Sequences of equal length are interchangeable. So a filling is computed once and used for as many rows as possible.
    The cost grows with row_length and is nearly independent of n.

    Args:
        lengths: int [n], none above row_length.
        max_sequences: K.

    Returns:
        (order int64 [n], the sequences row after row; sizes int64 [rows], the number of sequences of each row).
    """
    by_length = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths, minlength=row_length + 1)
    taken = np.cumsum(counts) - counts
    counts = counts.tolist()
    present = [length for length, count in enumerate(counts) if count]
    rows, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    while present:
        filling: dict[int, int] = {}
        space, size = row_length, 0
        while size < max_sequences:
            place = bisect.bisect_right(present, space) - 1
            while place >= 0 and counts[present[place]] == filling.get(present[place], 0):
                place -= 1
            if place < 0:
                break
            length = present[place]
            filling[length] = filling.get(length, 0) + 1
            space, size = space - length, size + 1
        repeat = min(counts[length] // used for length, used in filling.items())
        columns = []
        for length, used in filling.items():
            columns.append(by_length[taken[length] : taken[length] + repeat * used].reshape(repeat, used))
            taken[length] += repeat * used
            counts[length] -= repeat * used
            if not counts[length]:
                present.remove(length)
        rows.append(np.concatenate(columns, axis=1).ravel())
        sizes.append(np.full(repeat, size))
    return np.concatenate(rows), np.concatenate(sizes)


def pack_table(lengths: np.ndarray, row_length: int, max_sequences: int) -> np.ndarray:
    """Assign sequences to rows as `pack` does.

    Returns:
        int64 [rows K], the sequences of each row, with -1 where a row has fewer than K.
    """
    sequence, sizes = pack(lengths, row_length, max_sequences)
    table = np.full((len(sizes), max_sequences), -1, np.int64)
    table[np.arange(max_sequences) < sizes[:, None]] = sequence
    return table


def write_rows(
    records: np.ndarray,
    lengths: Callable[[np.ndarray], np.ndarray],
    row_length: int,
    *,
    max_sequences: int,
    key: np.ndarray,
    folder: Path,
) -> None:
    """Pack sequences and write an index of rows to `folder`.

    It writes sequences.bin, the records row after row, and rows.bin, int64 [rows + 1], the first record of every row.
    Windows of sequences from the whole text are packed at once, so that sequences of one row are not neighbors in the
    text.

    records: [n], one for each sequence.
    lengths: function that returns the lengths of some records.
    key: key of the order of the sequences.
    """

    def window(start: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.arange(start, min(start + _WINDOW, len(records)))
        chosen = records[order.permute(places, len(records), key)]
        sequence, sizes = pack(lengths(chosen), row_length, max_sequences)
        return chosen[sequence], sizes

    end = np.zeros(1, np.int64)
    with open(folder / "sequences.bin", "wb") as packed_file, open(folder / "rows.bin", "wb") as rows_file:
        rows_file.write(end)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for chosen, sizes in pool.map(window, range(0, len(records), _WINDOW)):
                packed_file.write(chosen)
                ends = end + np.cumsum(sizes)
                rows_file.write(ends)
                end = ends[-1:]


def slots(offsets: np.ndarray | None, rows: np.ndarray, max_sequences: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences of some rows: their numbers, int64 [B K], and a mask, bool [B K], false for empty slots.

    offsets: int64 [rows + 1], the first sequence of every row; None if every row is one sequence.
    """
    if offsets is None:
        return rows[:, None], np.ones((len(rows), 1), bool)
    place, first = np.arange(max_sequences), offsets[rows]
    present = place < (offsets[rows + 1] - first)[:, None]
    return np.where(present, first[:, None] + place, first[:, None]), present


def spread(values: np.ndarray, runs: np.ndarray, row_length: int) -> np.ndarray:
    """Repeat each value along its run: values and runs [B R], R runs that sum to T in every row -> int32 [B T]."""
    values = np.broadcast_to(values, runs.shape).astype(np.int32)
    return np.repeat(values.ravel(), runs.ravel()).reshape(len(runs), row_length)


class Placed(NamedTuple):
    """Sequences placed in rows.

    begins: int64 [B K], the start of each sequence. segment_ids: int32 [B T], from 1, and 0 for padding.
    positions: int32 [B T], from 0 in each sequence.
    """

    begins: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray


def place(lengths: np.ndarray, row_length: int, padding: str = "right") -> Placed:
    """Place sequences of these lengths [B K] side by side. Sequences of length 0 are left out.

    padding: the side of the row that the padding fills, right or left.
    """
    ends = np.cumsum(lengths, axis=1)
    room, left = row_length - ends[:, -1:], padding == "left"
    begins = ends - lengths + (room if left else 0)
    numbers = np.arange(1, lengths.shape[1] + 1)

    def with_padding(padding: np.ndarray, of_sequences: np.ndarray) -> np.ndarray:
        return np.concatenate([padding, of_sequences] if left else [of_sequences, padding], axis=-1)

    runs = with_padding(room, lengths)
    segment_ids = spread(with_padding(np.zeros(1, np.int64), numbers), runs, row_length)
    origins = spread(with_padding(np.zeros_like(room), begins), runs, row_length)
    positions = (np.arange(row_length, dtype=np.int32) - origins) * (segment_ids > 0)
    return Placed(begins, segment_ids, positions)


def copy(rows: np.ndarray, begins: np.ndarray, pieces: Iterable[np.ndarray], out: np.ndarray) -> None:
    """Write each piece [length ...] to out [B T ...], at the position `begins` of its row.

    rows and begins: [pieces].
    """
    flat = out.reshape(-1, *out.shape[2:])
    for begin, piece in zip((rows * out.shape[1] + begins).tolist(), pieces, strict=True):
        flat[begin : begin + len(piece)] = piece
