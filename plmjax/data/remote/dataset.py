"""A dataset in a bucket, with local copies of the held-out text and some pieces of the training text."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plmjax.data import cache, store
from plmjax.data.remote.ranges import Range
from plmjax.errors import UserError
from plmjax.files import storage


class PlacedPiece(NamedTuple):
    """A piece of the training text: the range of its record, and the offsets of its arrays in the file.

    tokens: number of tokens of its longest stream.
    """

    range: Range
    arrays: dict[str, list[int]]
    tokens: int


class RemoteDataset(store.Dataset):
    """A dataset in a bucket. The directory is the local copy of all files except the training text.

    address: the folder in the bucket. limit: bytes that the dataset may take on the disk. pieces: the training text.
    """

    in_pieces = True

    def __init__(self, directory: Path, manifest: dict[str, Any], address: Path, limit: int):
        super().__init__(directory, manifest)
        self.address = address
        self.limit = limit
        self.pieces = tuple(
            PlacedPiece(
                Range(shard["file"], *places[store.RECORD]),
                places,
                max(places[f"{stream}/tokens"][1] for stream in self.streams),
            )
            for shard in manifest["splits"]["train"]["shards"]
            for places in shard["pieces"]
        )

    @property
    def copied_bytes(self) -> int:
        """Bytes of the local copy."""
        return sum(file.size for file in storage.files(self.directory).values())

    def split(self, name: str, stream: str = store.TEXT) -> store.Split:
        """Return a stream of the held-out text. The training text can be read in pieces only (`piece`)."""
        if self._files_of(name) == "train":
            raise ValueError(f"Expected the split validation of {self.address}, found {name}: it is read in pieces.")
        return super().split(name, stream)

    def index(self, settings: dict[str, Any], build: Callable[[Path], None]) -> cache.Index:
        return cache.in_memory(build)

    def piece(self, number: int, record: np.ndarray) -> "Piece":
        """Return a piece as a dataset. record: uint8 [bytes], the record of the piece."""
        return Piece(self, self.pieces[number], record)


class Piece(store.Dataset):
    """The documents of one piece, as a dataset with this training text. Its indices are kept in memory."""

    def __init__(self, dataset: RemoteDataset, place: PlacedPiece, record: np.ndarray):
        super().__init__(dataset.directory, dataset.manifest)
        self._place = place
        self._record = record

    def split(self, name: str, stream: str = store.TEXT) -> store.Split:
        """Return a stream of the piece."""
        self._check(stream)
        if name != "train":
            raise ValueError(f"Expected the split train of a piece, found {name}.")
        sentences, documents = (
            np.concatenate([[0], np.cumsum(self._array(f"{stream}/{part}", store.LENGTHS), dtype=np.int64)])
            for part in ("sentence_lengths", "document_lengths")
        )
        tokens = self._array(f"{stream}/tokens", store.token_dtype(self.vocab_size))
        if sentences[-1] != len(tokens) or documents[-1] != len(sentences) - 1:
            raise UserError(
                f"Expected {len(tokens):,} tokens in the sentences of a piece of {self._place.range.file}, found "
                f"{sentences[-1]:,} in {documents[-1]:,} sentences; prepare the dataset again."
            )
        return store.Split(name, sentences, documents, [tokens])

    def documents(self, name: str) -> int:
        return self._place.arrays[f"{self.streams[0]}/document_lengths"][1] if name == "train" else 0

    def index(self, settings: dict[str, Any], build: Callable[[Path], None]) -> cache.Index:
        return cache.in_memory(build)

    def _array(self, name: str, dtype: np.dtype) -> np.ndarray:
        start, count = self._place.arrays[name]
        start -= self._place.range.start
        return self._record[start : start + count * dtype.itemsize].view(dtype)


def open_dataset(
    path: str | os.PathLike,
    limit: int | None,
    *,
    vocab_size: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> store.Dataset:
    """Open a prepared dataset as `store.open_dataset` does, or as a `RemoteDataset` if it is larger than the limit.

    limit: bytes that the dataset may take on the disk of a host; None for no limit.

    Raises:
        UserError: an error of `store.open_dataset`; a limit for a folder that is not in a bucket, or one smaller than
            the held-out text; a dataset without the ranges of its pieces.
    """
    if limit is None:
        return store.open_dataset(path, vocab_size=vocab_size, report=report)
    address = storage.path(path)
    if not storage.in_bucket(address):
        raise UserError(
            f"Expected a dataset in a bucket for --data.cache_limit, found {address}, which is read where it lies; "
            "leave the option out."
        )
    manifest = store.read_manifest(address)
    expected = store.all_files(manifest)
    if sum(entry["bytes"] for entry in expected.values()) <= limit:
        return store.open_dataset(path, vocab_size=vocab_size, report=report)
    shards = manifest["splits"]["train"]["shards"]
    if any(store.RECORD not in piece for shard in shards for piece in shard["pieces"]):
        raise UserError(
            f"Expected the range of every piece in the manifest of {address}, found a dataset of an earlier version; "
            "prepare it again, or leave --data.cache_limit out."
        )
    absent = {shard["file"] for shard in shards} | {store.field_file("train", name) for name in manifest["fields"]}
    absent |= {name for stream in manifest["streams"] for name in store.offset_files("train", stream)}
    expected = {name: entry for name, entry in expected.items() if name not in absent}
    held_out = sum(entry["bytes"] for entry in expected.values())
    if held_out > limit:
        raise UserError(
            f"Expected a --data.cache_limit of more than {held_out:,} bytes, the held-out text of {address}, found "
            f"{limit:,}; raise it, or hold out a smaller share when the dataset is prepared."
        )
    whole = store.Dataset(address, manifest)
    whole.check_size(vocab_size)
    copy = store.local_copy(whole, f"{whole.fingerprint}.held_out", expected, report)
    return RemoteDataset(copy, manifest, address, limit)
