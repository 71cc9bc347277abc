"""Raw text to a prepared dataset: read, clean, split into sentences, tokenize, write; over all cores, once.

One process reads and cuts the stream into batches of raw documents, others turn a batch into token ids, and the first
writes what comes back in the order it was read. So the result does not depend on the number of processes, and what is
in memory at any time is a few batches, whatever the size of the input.
"""

import collections
import concurrent.futures
import contextlib
import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plmjax import locks, storage
from plmjax.data import checksums, formats, sentences, store
from plmjax.data.tokenizers import Tokenizer
from plmjax.errors import UserError

VERSION = 2
"""Raised when the same input would give another dataset."""
BATCH_CHARACTERS = 1 << 19
SHARD_TOKENS = 1 << 25
JUDGED_TOKENS = 100_000
"""Tokens after which the share of unknown ones is first judged; then after every batch, and at the end."""
BEGUN = "begun.json"
"""In the output folder from the first moment on: what is there is ours, and unfinished while there is no ledger."""


class Tokens(NamedTuple):
    """Documents back to back: ids [N], tokens of each sentence, sentences of each document."""

    ids: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray


def prepare(
    inputs: Sequence[str | os.PathLike],
    format: str,
    tokenizer: Tokenizer,
    output: str | os.PathLike,
    *,
    validation: float = 0.05,
    language: str = "en",
    text_key: str = "text",
    max_unknown: float = 0.2,
    processes: int | None = None,
    progress: bool = True,
) -> store.Dataset:
    """Prepares `inputs` (files or folders) into the folder `output` and opens it.

    A document goes to the validation split by a hash of its sentences, so that it is in the same split wherever it
    stands and however often. A dataset that is already there and was made from the same is opened at once.

    Args:
      format: one of `formats.FORMATS` or tfds:NAME.
      validation: share of the documents kept for evaluation.
      language: one of `sentences.LANGUAGES`, for splitting sentences.
      text_key: what holds the text in a JSON object, a row of a table or an example of TFDS.
      max_unknown: share of unknown tokens beyond which the tokenizer is taken for one of another language or script.
      processes: how many tokenize; None is one a core.

    Raises:
      UserError: unreadable input, no document in it, too many unknown tokens, a full disk, or an `output` that holds
        something else.
    """
    output = storage.path(output)
    sentences.check(language)
    if not 0 <= validation < 1:
        raise UserError(f"Expected a share of validation documents from 0 up to 1, found {validation}; try 0.05.")
    if processes is not None and processes < 1:
        raise UserError(f"Expected at least one process, found {processes}; leave it out for one a core.")
    if not 0 <= max_unknown <= 1:
        raise UserError(
            f"Expected a share of unknown tokens from 0 to 1 for max_unknown, found {max_unknown}; try 0.2."
        )
    sources = formats.sources(inputs, format)
    description = {"preparation": VERSION, "format": format, "language": language, "validation": validation}
    description["text_key"] = text_key
    if _is_finished(output, sources, description, tokenizer):
        if progress:
            print(f"dataset    {output} was prepared before from the same text; nothing to do")
        return store.open_dataset(output)
    try:
        work = _Work(tokenizer, language, validation)
        with (
            _begun(output),
            storage.output(output, last=store.LEDGER) as folder,
            _Bar(sum(source["bytes"] for source in sources), progress) as bar,
        ):
            batches = _batches(formats.documents(inputs, format, bar.advance, text_key))
            tokenized = _known(_tokenized(batches, work, processes or os.cpu_count() or 1), tokenizer, max_unknown)
            shards = _write(tokenized, folder, work, bar)
            if not bar.tokens:
                names = ", ".join(source["path"] for source in sources[:3])
                raise UserError(f"Expected documents in {names}, found no running text; check the --format ({format}).")
            store.finish(folder, shards, tokenizer, sources, description)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"Expected room for the dataset in {output}, found the disk full; free some and repeat."
        ) from error
    dataset = store.open_dataset(output)
    if progress:
        print(f"unknown    {_unknown_share(dataset, tokenizer):.2%} of the tokens of the training text")
    if progress and validation and not dataset.split("validation").documents:
        print(_nothing_held_out(dataset.split("train").documents, validation))
    return dataset


def _nothing_held_out(documents: int, validation: float) -> str:
    """What is said of a dataset without held-out text, in one line."""
    enough = min(0.5, 5 / documents)
    advice = f"hold out a larger share, such as {enough:.2g}" if documents > 1 and enough > validation else "add text"
    return (
        f"held-out   nothing: a share of {validation:g} of {documents:,} document{'s' * (documents != 1)} is drawn by "
        f"a hash of the text, and none was; training on this goes without evaluation, so {advice}, or cut the text "
        f"into more documents by blank lines"
    )


# ------------------------------------------------------------------------------------------------- the output folder


def _is_finished(output: Path, sources: list[dict], description: dict, tokenizer: Tokenizer) -> bool:
    """Whether `output` holds exactly this dataset, whole. Raises UserError when it holds another one."""
    if not (output / store.LEDGER).is_file():
        return False
    try:
        ledger = json.loads((output / store.LEDGER).read_text(encoding="utf-8"))
        known = [_content(source) for source in ledger["sources"]], ledger["description"], ledger["tokenizer"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"Expected a ledger in {output}, found a damaged one; remove the folder and repeat.") from error
    differing = [
        name
        for name, same in (
            ("text", known[0] == [_content(source) for source in sources]),
            ("tokenizer", known[2].get("fingerprint") == tokenizer.fingerprint),
            *((key, known[1].get(key) == value) for key, value in description.items()),
        )
        if not same
    ]
    if differing:
        raise UserError(
            f"Expected {output} to be new or made from the same, found a finished dataset with another "
            f"{', another '.join(differing)}; name another output or remove it."
        )
    try:
        store.open_dataset(output)
    except UserError:  # damaged since: made again
        return False
    return True


def _content(source: dict) -> dict:
    """What of a source determines the dataset; a moved file is the same text."""
    return {key: value for key, value in source.items() if key != "path" or "sha256" not in source}


@contextlib.contextmanager
def _begun(output: Path) -> Iterator[None]:
    """An empty folder of this process: what an earlier attempt left is removed, what others left is an error."""
    with locks.held(output):
        _clear(output)
        yield
        (output / BEGUN).unlink()


def _clear(output: Path) -> None:
    ours = (output / BEGUN).is_file() or (output / store.LEDGER).is_file()
    if not ours and any(path.name != locks.NAME for path in output.iterdir()):
        raise UserError(f"Expected a new or empty folder for the dataset, found files in {output}; name another.")
    storage.write(output / BEGUN, "{}\n")
    for path in output.iterdir():
        generated = (
            path.name.startswith((store.LEDGER, "corpus-")) or path.suffix == ".npy" or path.name in store.TFDS_METADATA
        )
        if path.name in ("tokenizer", checksums.FOLDER) or generated:
            storage.remove(path)


def _known(batches: Iterator[dict[str, Tokens]], tokenizer: Tokenizer, limit: float) -> Iterator[dict[str, Tokens]]:
    """The batches, as long as no larger share of their tokens is unknown than `limit`; early, for hours may follow."""
    unknown = total = 0

    def judge() -> None:
        if unknown > limit * total:
            raise UserError(
                f"Expected text that the tokenizer knows, found {unknown / total:.1%} of the first {total:,} tokens "
                f"unknown, more than max_unknown ({limit:g}); take a tokenizer that was trained on such text, or raise "
                f"max_unknown to go on with it."
            )

    for batch in batches:
        for tokens in batch.values():
            unknown += np.count_nonzero(tokens.ids == tokenizer.vocabulary.unknown)
            total += len(tokens.ids)
        if total >= JUDGED_TOKENS:
            judge()
        yield batch
    judge()


def _unknown_share(dataset: store.Dataset, tokenizer: Tokenizer) -> float:
    counts = dataset.unigram_counts
    return counts[tokenizer.vocabulary.unknown] / counts.sum() if tokenizer.vocabulary.unknown >= 0 else 0.0


def _write(batches: Iterator[dict[str, Tokens]], output: Path, work: "_Work", bar: "_Bar") -> dict[str, list[dict]]:
    """Writes tokens to shards of `SHARD_TOKENS` as they come; returns the shards' records by split."""
    records: dict[str, list[dict]] = {split: [] for split in store.SPLITS}
    writers: dict[str, store.ShardWriter] = {}
    written = dict.fromkeys(store.SPLITS, 0)
    for batch in batches:
        for split, tokens in batch.items():
            if split not in writers:
                index = len(records[split])
                writers[split] = store.ShardWriter(output, split, index, work.tokenizer.vocabulary.size)
            writers[split].extend(*tokens)
            written[split] += len(tokens.ids)
            bar.tokens += len(tokens.ids)
            if written[split] >= SHARD_TOKENS:
                records[split].append(writers.pop(split).close())
                written[split] = 0
    for split, writer in writers.items():
        records[split].append(writer.close())
    return records


# ------------------------------------------------------------------------------------------------------ the work


class _Work(NamedTuple):
    """All that a process must know to turn raw documents into tokens."""

    tokenizer: Tokenizer
    language: str
    validation: float

    def __call__(self, documents: list[formats.Document]) -> dict[str, Tokens]:
        """Tokens of a batch by split; documents without a token are left out."""
        splits: dict[str, list[list[str]]] = collections.defaultdict(list)
        for document in documents:
            if text := sentences.split(formats.prose(document), self.language):
                splits[_split(text, self.validation)].append(text)
        return {split: tokens for split, texts in splits.items() if len((tokens := self._encode(texts)).ids)}

    def _encode(self, documents: list[list[str]]) -> Tokens:
        # A sentence but the first has its space before it, so that byte-level tokens are those of the whole text.
        spaced = [sentence if n == 0 else f" {sentence}" for text in documents for n, sentence in enumerate(text)]
        ids, lengths = self.tokenizer.encode_arrays(spaced)
        starts = np.cumsum([0, *(len(text) for text in documents[:-1])])
        counts = np.add.reduceat(lengths > 0, starts, dtype=np.int32)
        dtype = store.token_dtype(self.tokenizer.vocabulary.size)
        return Tokens(ids.astype(dtype), lengths[lengths > 0], counts[counts > 0])


def _split(text: list[str], validation: float) -> str:
    digest = hashlib.blake2b("\n".join(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "validation" if int.from_bytes(digest, "little") < validation * 2**64 else "train"


def _batches(documents: Iterable[formats.Document]) -> Iterator[list[formats.Document]]:
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_work: _Work | None = None  # of a worker process


def _start_worker(work: _Work) -> None:
    global _work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are taken by processes
    _work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed: it would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(0)


def _run_worker(documents: list[formats.Document]) -> dict[str, Tokens]:
    return _work(documents)


def _tokenized(batches: Iterator[list[formats.Document]], work: _Work, processes: int) -> Iterator[dict[str, Tokens]]:
    """Tokens of every batch, in order; a text of a few batches is not worth a second process."""
    first = list(itertools.islice(batches, 2 * processes))
    if processes == 1 or len(first) < 2 * processes:
        yield from map(work, itertools.chain(first, batches))
        return
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(processes, context, _start_worker, (work,))

    def submit(batch: list[formats.Document]) -> concurrent.futures.Future:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # which the worker that may start inherits:
        try:
            return pool.submit(_run_worker, batch)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # a Ctrl-C is for its parent alone

    try:
        pending = collections.deque(map(submit, first))
        first.clear()
        for batch in batches:
            yield pending.popleft().result()
            pending.append(submit(batch))
        while pending:
            yield pending.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(
            "Expected the tokenizing processes to go on, found one ended by the system, most likely for lack of "
            "memory; repeat with fewer --processes."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


# ----------------------------------------------------------------------------------------------------- progress


class _Bar:
    """Bytes read and tokens made so far: a bar on a terminal, a line every ten seconds in a log."""

    def __init__(self, total: int, shown: bool):
        self.tokens = 0
        self._done, self._total = 0, total
        self._shown = shown
        self._start = self._last = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._rich = None

    def __enter__(self) -> "_Bar":
        if self._shown and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("prepare"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TextColumn("{task.fields[tokens]:,} tokens"),
                progress.TimeRemainingColumn(),
            )
            self._rich = self._stack.enter_context(progress.Progress(*columns, console=Console(stderr=True)))
            self._task = self._rich.add_task("prepare", total=self._total or None, tokens=0)
        return self

    def __exit__(self, *error) -> None:
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, tokens=self.tokens)
        self._stack.close()

    def advance(self, count: int) -> None:
        """`count` more bytes were read."""
        self._done += count
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, tokens=self.tokens)
        elif self._shown and (now := time.monotonic()) - self._last >= 10:
            self._last = now
            share = f" of {self._total / 1e6:,.1f}" if self._total else ""
            rate = self.tokens / (now - self._start)
            print(
                f"prepare    {self._done / 1e6:,.1f}{share} MB  {self.tokens:,} tokens  {rate:,.0f} tokens/s",
                flush=True,
            )
