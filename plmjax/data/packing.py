"""Several sequences in one row: which share a row, and where each of them stands in it; and the width of rows of one.

Pretraining and fine-tuning use the same functions, whatever streams of values their sequences hold. B rows of T places,
at most K sequences in a row.
"""

import bisect
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from plmjax.data import order

_WINDOW = 1 << 16


def padded_width(length: int, longest: int | None) -> int:
    """The width that rows of this length are padded to: 16, 24, 32, 48, 64, 96, ... up to the model's positions."""
    power = 1 << max(length - 1, 8).bit_length()
    width = power * 3 // 4 if power > 16 and length <= power * 3 // 4 else power
    return width if longest is None else min(width, longest)


def pack(lengths: np.ndarray, row_length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Assigns sequences to rows: to each the longest that is left, then repeatedly the longest that still fits.

    lengths: int [n], none above row_length. most: K. Returns (order int64 [n], the sequences row after row; sizes int64
    [rows], how many each row holds). Sequences of one length are alike, so a filling is computed once and used for as
    many rows as there are sequences for it: the cost grows with row_length and is nearly independent of n.
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
        while size < most:
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


def packed(lengths: np.ndarray, row_length: int, most: int) -> np.ndarray:
    """As `pack`, as a table: which sequences share a row, int64 [rows K], -1 where a row holds fewer."""
    sequence, sizes = pack(lengths, row_length, most)
    table = np.full((len(sizes), most), -1, np.int64)
    table[np.arange(most) < sizes[:, None]] = sequence
    return table


def write_rows(
    records: np.ndarray,
    lengths: Callable[[np.ndarray], np.ndarray],
    row_length: int,
    most: int,
    key: np.ndarray,
    folder: Path,
) -> None:
    """Packs sequences and writes an index of rows: sequences.bin, their records row after row, and rows.bin, int64
    [rows + 1], the first record of every row.

    Windows of sequences from all over are packed at once, so that those of one row are no neighbours in the text.

    records: [n], one for each sequence. lengths: the lengths of some records. key: of the order of the sequences.
    """

    def window(start: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.arange(start, min(start + _WINDOW, len(records)))
        chosen = records[order.permute(places, len(records), key)]
        sequence, sizes = pack(lengths(chosen), row_length, most)
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


def slots(offsets: np.ndarray | None, rows: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of some rows: their numbers, int64 [B K], and whether there is one, bool [B K].

    offsets: int64 [rows + 1], the first sequence of every row; None where every row is one sequence.
    """
    if offsets is None:
        return rows[:, None], np.ones((len(rows), 1), bool)
    place, first = np.arange(most), offsets[rows]
    present = place < (offsets[rows + 1] - first)[:, None]
    return np.where(present, first[:, None] + place, first[:, None]), present


def spread(values: np.ndarray, runs: np.ndarray, row_length: int) -> np.ndarray:
    """Each value repeated along its run: values and runs [B R], the runs of a row T places in all -> int32 [B T]."""
    values = np.broadcast_to(values, runs.shape).astype(np.int32)
    return np.repeat(values.ravel(), runs.ravel()).reshape(len(runs), row_length)


def place(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Puts sequences of these lengths [B K] side by side, those of length 0 nowhere.

    Returns (begins [B K], where each stands; segment_ids int32 [B T], 1.. and 0 for padding; positions int32 [B T],
    from 0 in each).
    """
    ends = np.cumsum(lengths, axis=1)
    begins = ends - lengths
    count = lengths.shape[1] + 1  # the last run is padding
    runs = np.concatenate([lengths, row_length - ends[:, -1:]], axis=1)
    segment_ids = spread(np.arange(1, count + 1) % count, runs, row_length)
    origins = spread(np.concatenate([begins, np.zeros_like(ends[:, :1])], axis=1), runs, row_length)
    positions = (np.arange(row_length, dtype=np.int32) - origins) * (segment_ids > 0)
    return begins, segment_ids, positions


def copy(rows: np.ndarray, begins: np.ndarray, pieces: Iterable[np.ndarray], out: np.ndarray) -> None:
    """Writes each piece [length ...] to out [B T ...], at the place `begins` of its row; rows and begins [pieces]."""
    flat = out.reshape(-1, *out.shape[2:])
    for begin, piece in zip((rows * out.shape[1] + begins).tolist(), pieces, strict=True):
        flat[begin : begin + len(piece)] = piece
