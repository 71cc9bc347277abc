"""Count cooccurrences in a prepared dataset: in parts, over several processes, in bounded memory.

The text is cut into ranges of tokens. A process writes the pairs of a range into one array, sorts it and stores the
sums as a run. Runs are merged until few are left, and the last merge writes the cells. A count that was killed keeps
its runs. The next attempt counts only the remaining ranges.
"""

import bisect
import collections
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import store
from plmjax.data.cooccurrence import cells, pairs, runs
from plmjax.data.store.manifest import manifest_checksum
from plmjax.data.workers import Workers
from plmjax.errors import UserError, listed
from plmjax.files import json_text, locks, seals, storage

if TYPE_CHECKING:
    from plmjax.data.beam import Beam

MEMORY = 1024
"""MiB of all processes together."""
PROCESS_MEMORY = 128
"""MiB that each process needs besides its pairs and sums: for Python, NumPy and the text it reads."""
PIECE = 1 << 16
"""Number of tokens whose pairs are numbered at once: few enough for the processor's cache."""
LOOK_BACK = 1 << 10
"""Number of tokens before a range that are read at a time, until the words of one window are found."""


def check_words(vocabulary: Vocabulary, dataset: str | os.PathLike) -> None:
    """Raise UserError if tokens are parts of words, whose neighbors are mostly the rest of the same word."""
    if vocabulary.continuation is None or vocabulary.continuation.any():
        raise UserError(
            f"Expected a dataset of whole words to count, found that {dataset} has parts of words; prepare it with a "
            f"tokenizer of the kind word."
        )


def count(
    dataset: store.Dataset,
    special: tuple[int, ...],
    output: str | os.PathLike,
    counting: cells.Counting = cells.Counting(),
    *,
    memory: int = MEMORY,
    processes: int | None = None,
    runner: str = "",
    runner_options: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> cells.Cells:
    """Count the training text of a dataset into the folder `output`, and open it.

    An existing count with the same inputs is opened at once. A count that was stopped is continued.

    Args:
        special: ids of tokens that are not words; they are left out.
        memory: MiB of all processes together, or of each process of a runner. Pages of the text that the system caches
            are not included.
        processes: number of processes that count; None uses one per core, as far as the memory allows.
        runner: a runner of Apache Beam that takes the place of the processes (see `plmjax.data.beam`).
        runner_options: options of Beam, NAME=VALUE or NAME.

    Raises:
        UserError: no word is frequent enough, too little memory, too long a text for the window, or an `output` that
            holds something else.
    """
    output, processes, capacity = (
        cells.on_disk(output),
        *_divide_memory(memory, 1 if runner else processes, counting.window),
    )
    made_from = {"counting": dataclasses.asdict(counting), "dataset": dataset.fingerprint}
    work = _make_work(dataset, special, counting, capacity=capacity, processes=processes)._replace(
        made_from=seals.digest(made_from)
    )
    if (output / cells.MANIFEST).exists():
        _check_same(output, cells.read_manifest(output), made_from)
        _tidy(output)
        report(f"cells      {output} was counted before from the same text; nothing to do")
        return cells.open_cells(output)
    with locks.lock(output):
        _begin(output, made_from)
        with _workers(work, processes, output, runner=runner, runner_options=runner_options) as workers:
            _count_runs(output, work, workers, report)
            while len(found := runs.find(output)) > runs.FAN_IN:
                report(f"merge      {len(found):,} runs")
                groups = [(output, group, capacity) for group in runs.groups(found) if len(group) > 1]
                collections.deque(workers.results(_Counter.merge, groups), maxlen=0)
        found = runs.find(output)
        manifest = _write(output, work, [run.path(output) for run in found], capacity) | made_from
        manifest["crc32c"] = manifest_checksum(manifest)
        storage.write(output / cells.MANIFEST, json.dumps(manifest, indent=1))
        _tidy(output)
    return cells.open_cells(output)


def _workers(
    work: "_Work", processes: int, output: Path, *, runner: str, runner_options: Sequence[str]
) -> "Workers | Beam":
    if runner:
        from plmjax.data.beam import Beam

        return Beam(runner, runner_options, _Counter, work, output=output)
    advice = "repeat with a smaller memory or fewer processes: what was counted is kept"
    return Workers(processes, _Counter, work, doing="counting", advice=advice)


def _divide_memory(memory: int, processes: int | None, window: int) -> tuple[int, int]:
    """Return the number of processes, and the bytes of pairs and sums that each may use."""
    pairs_of_a_piece = 8 * window * PIECE
    needed = PROCESS_MEMORY + -(-pairs_of_a_piece // 2**20)
    if processes is None:
        processes = max(min(os.cpu_count() or 1, memory // needed), 1)
    if processes < 1:
        raise UserError(f"Expected at least one process, found {processes}; leave it out for one a core.")
    if memory // processes < needed:
        raise UserError(
            f"Expected a memory of at least {processes * needed} MiB for {processes} processes and a window of "
            f"{window}, found {memory}; give more, or take fewer processes."
        )
    return processes, (memory // processes - PROCESS_MEMORY) * 2**20


# -------------------------------------------------------------------------------------------------------- the folder


def _begin(output: Path, made_from: dict) -> None:
    """Mark the folder as belonging to this count. An unfinished count with the same inputs is continued."""
    if (output / cells.BEGUN).is_file():
        try:
            before = json_text.parse(storage.contents(output / cells.BEGUN))
            json_text.check(before, cells.MADE_FROM)
        except ValueError:
            raise UserError(f"Expected a count in {output}, found a damaged one; remove the folder.") from None
        _check_same(output, before, made_from)
    elif not locks.is_unused(output):
        raise UserError(f"Expected a new or empty folder for the count, found files in {output}; name another.")
    storage.write(output / cells.BEGUN, json.dumps(made_from))
    runs.remove_others(output, seals.digest(made_from))


def _tidy(output: Path) -> None:
    """Remove the files that a finished count does not need."""
    for run in runs.find(output):
        run.remove(output)
    storage.remove(output / cells.BEGUN)


def _check_same(output: Path, before: dict, made_from: dict) -> None:
    known, asked = ({"dataset": made["dataset"], **made["counting"]} for made in (before, made_from))
    differing = [name for name in asked if known[name] != asked[name]]
    if differing:
        raise UserError(
            f"Expected {output} to be new or made from the same, found a count with another {listed(differing)}; name "
            "another folder or remove it."
        )


# ---------------------------------------------------------------------------------------------------------- the work


class _Work(NamedTuple):
    """The inputs of a process that counts a range of the text.

    words: bool [V], true for each id of the vocabulary that is a word and frequent enough.
    tokens: number of tokens of the text. length: number of tokens of a range.
    made_from: digest of the inputs of the count.
    """

    directory: Path
    words: np.ndarray
    counting: cells.Counting
    tokens: int
    length: int
    made_from: str = ""

    @property
    def numbering(self) -> pairs.Numbering:
        return pairs.Numbering(len(self.words))

    @property
    def unit(self) -> int:
        """Return the denominator of all sums."""
        return math.lcm(*range(1, self.counting.window + 1))


def _make_work(
    dataset: store.Dataset, special: tuple[int, ...], counting: cells.Counting, *, capacity: int, processes: int
) -> _Work:
    times = np.array(dataset.unigram_counts())
    times[list(special)] = 0
    if times.max(initial=0) < counting.min_count:
        raise UserError(
            f"Expected words with at least {counting.min_count} occurrences in {dataset.directory}, found none; "
            "give more text or lower --min_count."
        )
    tokens = dataset.split("train").token_count
    length = min(capacity // (8 * counting.window), -(-tokens // processes))
    work = _Work(dataset.directory, times >= counting.min_count, counting, tokens, length)
    # Each word adds at most the reciprocals of all distances, and twice that to a cell on the diagonal.
    if 2 * tokens * sum(work.unit // distance for distance in range(1, counting.window + 1)) >= 2**63:
        raise UserError(
            f"Expected a window whose sums fit 64 bits for {tokens:,} tokens, found {counting.window} words; make the "
            "window smaller."
        )
    if len(times) > pairs.LARGEST_VOCABULARY:
        raise UserError(
            f"Expected a vocabulary of at most {pairs.LARGEST_VOCABULARY:,} tokens, found {len(times):,}; use another."
        )
    return work


class _Counter:
    """Counts ranges of a text, and merges the counts."""

    def __init__(self, work: _Work):
        self._work = work
        self._split = store.open_dataset(work.directory).split("train")
        weights = [0, *(work.unit // distance for distance in range(1, work.counting.window + 1))]
        self._weights = np.zeros(1 << pairs.DISTANCE_BITS, np.int64)
        self._weights[: len(weights)] = weights
        self._numbering = work.numbering

    def count(self, folder: Path, run: runs.Run) -> None:
        """Write the run of a range."""
        found = np.empty((run.stop - run.start) * self._work.counting.window, np.uint64)
        used = 0
        for part in self._pairs(run):
            found[used : used + len(part)] = part
            used += len(part)
        runs.write_counted(folder, run, found[:used], weights=self._weights, made_from=self._work.made_from)

    def merge(self, folder: Path, group: list[runs.Run], capacity: int) -> None:
        runs.merge(folder, group, capacity, self._work.made_from)

    def _pairs(self, run: runs.Run) -> Iterator[np.ndarray]:
        """Yield the pairs whose right word lies in the range."""
        counting = self._work.counting
        words, documents = self._before(run.start)
        for start in range(run.start, run.stop, PIECE):
            first = len(words)
            more = self._read(start, min(start + PIECE, run.stop))
            words, documents = (np.concatenate(both) for both in zip((words, documents), more, strict=True))
            yield from pairs.window_pairs(
                words, documents, first, window=counting.window, symmetric=counting.symmetric, numbering=self._numbering
            )
            words, documents = words[-counting.window :], documents[-counting.window :]

    def _read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words among the tokens start..stop-1, uint64, and the document of each, int64."""
        tokens = self._split.tokens(start, stop)
        first, last = self._document(start), self._document(stop - 1)
        begins = self._split.sentence_offsets[self._split.document_offsets[first + 1 : last + 1]]
        documents = np.repeat(np.arange(first, last + 1), np.diff([start, *begins, stop]))
        kept = self._work.words[tokens]
        return tokens[kept].astype(np.uint64), documents[kept]

    def _before(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words before a token in its document, at most as many as the window, and their documents."""
        words, documents = np.empty(0, np.uint64), np.empty(0, np.int64)
        begin = int(self._first_token(self._document(start)))
        while start > begin and len(words) < self._work.counting.window:
            more = self._read(max(start - LOOK_BACK, begin), start)
            words, documents = (np.concatenate(both) for both in zip(more, (words, documents), strict=True))
            start -= LOOK_BACK
        return words[-self._work.counting.window :], documents[-self._work.counting.window :]

    def _document(self, token: int) -> int:
        """Return the number of the document that contains a token."""
        return bisect.bisect_right(range(self._split.documents), token, key=self._first_token) - 1

    def _first_token(self, document: int) -> np.int64:
        return self._split.sentence_offsets[self._split.document_offsets[document]]


def _count_runs(output: Path, work: _Work, workers: "Workers | Beam", report: Callable[[str], None]) -> None:
    """Count the ranges of the text that are not counted yet."""
    left, at = [], 0
    for run in [*runs.find(output), runs.Run(work.tokens, work.tokens)]:
        left += [runs.Run(begin, min(begin + work.length, run.start)) for begin in range(at, run.start, work.length)]
        at = run.stop
    start = shown = time.monotonic()
    done = work.tokens - sum(run.stop - run.start for run in left)
    if done:
        report(f"count      {done:,} of {work.tokens:,} tokens were counted before")
    before = done
    for number, _ in enumerate(workers.results(_Counter.count, [(output, run) for run in left])):
        done += left[number].stop - left[number].start
        if (now := time.monotonic()) - shown >= 10 or number == len(left) - 1:
            shown = now
            report(f"count      {done:,} of {work.tokens:,} tokens  {(done - before) / (now - start):,.0f} tokens/s")


def _write(output: Path, work: _Work, paths: list[Path], capacity: int) -> dict:
    """Merge the last runs into cells, and return the manifest's entries for them."""
    writer, total = cells.Writer(output), 0
    for sums in runs.merge_sums(paths, capacity):
        rows, columns = work.numbering.pairs(sums["number"])
        of_cells, mirrored = sums["sum"], np.zeros(len(sums), bool)
        if work.counting.symmetric:
            diagonal = rows == columns
            copies = np.where(diagonal, 1, 2)
            of_cells = np.repeat(np.where(diagonal, 2 * of_cells, of_cells), copies)
            rows, columns = np.repeat(rows, copies), np.repeat(columns, copies)
            mirrored = np.concatenate([[False], (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])])
        found = np.empty(len(rows), cells.CELL)
        found["row"], found["column"] = np.where(mirrored, columns, rows), np.where(mirrored, rows, columns)
        found["value"] = of_cells / work.unit
        total += int(of_cells.sum())
        writer.extend(found)
    files = writer.close()
    if not writer.cells:
        raise UserError(
            f"Expected words beside each other in {work.directory}, found none; give longer documents or lower "
            "--min_count."
        )
    of_words = {"words": int(work.words.sum()), "vocab_size": len(work.words)}
    counts = {"cells": writer.cells, "total": total / work.unit, **of_words}
    return {"kind": cells.KIND, "version": cells.VERSION, **counts, "files": files}
