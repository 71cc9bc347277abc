"""Opens a prepared dataset: checks that it is complete, and reads any range of tokens of any stream."""

import bisect
import fcntl
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from plmjax.data import cache, checksums
from plmjax.data.store.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    NUMBERS,
    TEXT,
    all_files,
    check,
    data_files,
    field_file,
    manifest_checksum,
    offset_files,
    token_dtype,
    unigram_file,
)
from plmjax.errors import UserError, listed, quoted
from plmjax.files import json_text, storage


class Split:
    """One stream of a dataset split. Tokens are in the order in which they were written.

    sentence_offsets: int64 [sentences + 1], first token of every sentence; documents follow each other without a gap.
    document_offsets: int64 [documents + 1], first sentence of every document.
    pieces: the tokens, cut into arrays between documents.
    """

    def __init__(
        self, name: str, sentence_offsets: np.ndarray, document_offsets: np.ndarray, pieces: Sequence[np.ndarray]
    ):
        self.name = name
        self.sentence_offsets, self.document_offsets = sentence_offsets, document_offsets
        self.documents, self.sentences = len(document_offsets) - 1, len(sentence_offsets) - 1
        self._pieces = pieces
        self._starts = [0, *itertools.accumulate(map(len, pieces))]
        self.token_count = self._starts[-1]

    @classmethod
    def from_files(
        cls, directory: Path, name: str, files: str, *, stream: str, entry: dict[str, Any], dtype: np.dtype
    ) -> Self:
        """Return a split that reads one stream, memory-mapped from the files of a dataset.

        files: the name of the split in the file names.
        """
        totals, documents = entry["streams"][stream], entry["documents"]
        sentence_file, document_file = offset_files(files, stream)
        sentence_offsets = _offsets(directory / sentence_file, totals["sentences"], totals["tokens"])
        document_offsets = _offsets(directory / document_file, documents, totals["sentences"])
        pieces = []
        for record in entry["shards"]:
            data = np.memmap(directory / record["file"], np.uint8, "r").view(np.ndarray)
            for piece in record["pieces"]:
                start, count = piece[f"{stream}/tokens"]
                pieces.append(data[start : start + count * dtype.itemsize].view(dtype))
        return cls(name, sentence_offsets, document_offsets, pieces)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return tokens start..stop-1 of the split, [stop - start] uint16 or int32.

        The result is a view if the tokens are in one piece, such as those of one document.
        """
        piece = bisect.bisect_right(self._starts, start) - 1
        if stop <= self._starts[min(piece + 1, len(self._pieces))]:
            return self._pieces[piece][start - self._starts[piece] : stop - self._starts[piece]]
        if not 0 <= start <= stop <= self.token_count:
            raise IndexError(f"Expected tokens within 0..{self.token_count}, found {start}..{stop}.")
        return np.concatenate(list(self._parts(piece, start, stop)))

    def _parts(self, piece: int, start: int, stop: int) -> Iterator[np.ndarray]:
        while start < stop:
            begin, end = self._starts[piece], min(stop, self._starts[piece + 1])
            yield self._pieces[piece][start - begin : end - begin]
            start, piece = end, piece + 1

    @functools.cached_property
    def document_tokens(self) -> np.ndarray:
        """First token of every document, int64 [documents + 1]."""
        return self.sentence_offsets[self.document_offsets]


def _array(path: Path, dtype: np.dtype, length: int | None = None) -> np.ndarray:
    """Return the array of a file, memory-mapped.

    Raises:
        UserError: its type or length differs from the manifest.
    """
    try:
        found = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError):
        found = None
    if found is None or found.dtype != dtype or found.ndim != 1 or length not in (None, len(found)):
        size = "" if length is None else f"{length:,} "
        raise UserError(f"Expected {size}numbers of {dtype} in {path}, found others; prepare the dataset again.")
    return found


def _offsets(path: Path, parts: int, end: int) -> np.ndarray:
    """Return the offsets of parts, int64 [parts + 1]; the last entry is the end of the last part."""
    found = _array(path, np.dtype(np.int64), parts + 1)
    if found[0] != 0 or found[-1] != end:
        raise UserError(f"Expected offsets from 0 to {end:,} in {path}, found others; prepare the dataset again.")
    return found


class Dataset:
    """A finished prepared dataset; opened by `open_dataset`.

    in_pieces: true if the training text can be read in pieces only.
    """

    in_pieces: ClassVar[bool] = False

    def __init__(self, directory: Path, manifest: dict[str, Any], held_out: str = "validation"):
        self.directory = directory
        self.manifest = manifest
        self._held_out = held_out
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self.tokenizer_fingerprint: str = manifest["tokenizer"]["fingerprint"]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the contents of the dataset, hex. It does not depend on the folder or the time of preparation."""
        files = {name: [entry["bytes"], entry["crc32c"]] for name, entry in data_files(self.manifest).items()}
        contents = [FORMAT_VERSION, self.tokenizer_fingerprint, files, self._held_out]
        return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams."""
        return tuple(self.manifest["streams"])

    @property
    def train_tokens(self) -> int:
        """Number of tokens of the train split, over all streams."""
        return sum(stream["tokens"] for stream in self.manifest["splits"]["train"]["streams"].values())

    def check_tokenizer(self, fingerprint: str, whose: str, advice: str) -> None:
        """Raise UserError if the dataset was made with a tokenizer of another fingerprint.

        whose: owner of the expected tokenizer, for the message. advice: end of the message.
        """
        if self.tokenizer_fingerprint != fingerprint:
            raise UserError(
                f"Expected a dataset made with {whose} tokenizer, found {self.directory} made with another; {advice}."
            )

    def check_size(self, vocab_size: int | None) -> None:
        """Raise UserError if the dataset has a larger vocabulary than the model, `vocab_size`. None checks nothing."""
        if vocab_size is not None and self.vocab_size > vocab_size:
            raise UserError(
                f"Expected a dataset of at most {vocab_size} tokens, the model's vocabulary, found that "
                f"{self.directory} was prepared with {self.vocab_size}; use the model's tokenizer or raise its "
                "vocab_size."
            )

    def split(self, name: str, stream: str = TEXT) -> Split:
        """Return a stream of the split "train" or "validation".

        Raises:
            UserError: the dataset has no such stream.
        """
        self._check(stream)
        files = self._files_of(name)
        dtype = token_dtype(self.vocab_size)
        return Split.from_files(
            self.directory, name, files, stream=stream, entry=self.manifest["splits"][files], dtype=dtype
        )

    def documents(self, name: str) -> int:
        """Return the number of documents of the split "train" or "validation"."""
        return self.manifest["splits"][self._files_of(name)]["documents"]

    def sentences(self, name: str) -> int:
        """Return the number of sentences of the text of a split."""
        self._check(TEXT)
        return self.manifest["splits"][self._files_of(name)]["streams"][TEXT]["sentences"]

    def index(self, settings: dict[str, Any], build: Callable[[Path], None]) -> cache.Index:
        """Return the index of rows with these settings. `build(folder)` writes its files if there is no such index."""
        return cache.on_disk(self.directory / "index", settings, build)

    def all_held_out(self) -> "Dataset":
        """Return the dataset with its train split in place of the validation split, to evaluate on it."""
        return Dataset(self.directory, self.manifest, held_out="train")

    def fields(self, split: str) -> dict[str, np.ndarray]:
        """Return the numeric document fields by name, float64 [documents] each."""
        files = self._files_of(split)
        count = self.manifest["splits"][files]["documents"]
        return {
            name: _array(self.directory / field_file(files, name), NUMBERS, count) for name in self.manifest["fields"]
        }

    def unigram_counts(self, stream: str = TEXT) -> np.ndarray:
        """Return the number of times that each token occurs in the train split of a stream, int64 [V].

        Raises:
            UserError: as in `split`.
        """
        self._check(stream)
        return np.array(_array(self.directory / unigram_file(stream), np.dtype(np.int64), self.vocab_size))

    def _files_of(self, split: str) -> str:
        """Return the split name in the file names of `split`."""
        return self._held_out if split == "validation" else split

    def _check(self, stream: str) -> None:
        if stream not in self.streams:
            raise UserError(
                f"Expected the stream {quoted(stream)} in the dataset {self.directory}, found {listed(self.streams)}; "
                f"choose a layout for these, or prepare the text with other streams (plmjax prepare --streams)."
            )


def _damaged(path: Path) -> UserError:
    return UserError(
        f"Expected {path} as it was prepared, found that its checksum differs: the file is damaged; copy the dataset "
        "again or prepare it again."
    )


def local_copy(dataset: Dataset, name: str, expected: dict[str, dict[str, int]], report: Callable[[str], None]) -> Path:
    """Return the local copy of files of a dataset in a bucket; copy them if they are not there.

    Files can only be memory-mapped from a disk. The copy gets its name only when every file has the manifest's
    checksum, so an interrupted copy is never used. A damaged copy is replaced. Other processes of the machine wait for
    the copying process, and one of them copies if it dies.

    name: name of the copy in the user's cache folder.
    expected: the files, each with its size and checksum.
    """
    copy = storage.cache("datasets", name)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with open(copy.with_name(f"{copy.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = storage.files(copy)
        complete = all(name in found and found[name].size == expected[name]["bytes"] for name in expected)
        if complete and checksums.find_damaged(copy, expected, report) is None:
            return copy
        unfinished = copy.with_name(f"{copy.name}.copying")
        storage.remove(copy)
        storage.remove(unfinished)
        storage.fetch(dataset.directory, unfinished, [*expected, MANIFEST])
        if bad := checksums.first_difference(unfinished, expected):
            raise _damaged(dataset.directory / bad)
        unfinished.rename(copy)
        checksums.note(copy, expected)
    return copy


def open_dataset(
    directory: str | os.PathLike, *, vocab_size: int | None = None, report: Callable[[str], None] = lambda line: None
) -> Dataset:
    """Open a prepared dataset. Check that it is complete: every file has the size and the checksum of the manifest.

    Checksums are computed once on a machine (see `checksums`).

    Args:
        vocab_size: rows of the model's embedding, which must cover every token id.
        report: function that is called with a line if reading took long (`checksums.REPORTED_BYTES`).

    Raises:
        UserError: the folder is missing, was never finished, has another format version, misses a file, has a truncated
            or damaged file, or has a larger vocabulary than the model.
    """
    directory = storage.path(directory)
    dataset = Dataset(directory, read_manifest(directory))
    dataset.check_size(vocab_size)
    expected = all_files(dataset.manifest)
    if storage.in_bucket(directory):
        return Dataset(local_copy(dataset, dataset.fingerprint, expected, report), dataset.manifest)
    if bad := checksums.find_damaged(directory, expected, report):
        raise _damaged(directory / bad)
    return dataset


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a finished dataset, after a check that every file has its size.

    Raises:
        UserError: an error of `open_dataset`. The vocabulary and the checksums of other files are not checked.
    """
    if not directory.is_dir():
        raise UserError(f"Expected a prepared dataset at {directory}, found no folder; run plmjax prepare.")
    try:
        text = storage.contents(directory / MANIFEST)
    except FileNotFoundError:
        raise UserError(
            f"Expected a prepared dataset at {directory}, found no {MANIFEST}, with which a preparation ends; run "
            f"plmjax prepare, again if it was stopped, or read raw text with --data.input {directory}."
        ) from None
    try:
        manifest = json_text.parse(text)
        json_text.check(manifest, {"version": object})
        version = manifest["version"]
    except ValueError:
        raise UserError(
            f"Expected a manifest at {directory / MANIFEST}, found a damaged file; prepare again."
        ) from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"Expected {directory} in dataset format {FORMAT_VERSION}, found format {quoted(version)}; prepare it "
            "again."
        )
    if manifest.get("crc32c") != manifest_checksum(manifest):
        raise _damaged(directory / MANIFEST)
    try:
        check(manifest)
    except (ValueError, UserError) as error:
        raise UserError(
            f"Expected a manifest as plmjax writes it at {directory / MANIFEST}, found another "
            f"({json_text.reason(error)}); prepare the dataset again."
        ) from None
    found = storage.files(directory)
    for name, expected in all_files(manifest).items():
        path = directory / name
        if name not in found:
            raise UserError(f"Expected {path} as part of the dataset, found no such file; prepare the dataset again.")
        if found[name].size != expected["bytes"]:
            raise UserError(
                f"Expected {path} to have {expected['bytes']} bytes, found {found[name].size}: it was truncated or "
                "changed; prepare the dataset again."
            )
    return manifest
