"""The prepared dataset on disk: a TFDS folder whose tokens are found by offset, and the ledger that says it is whole.

    DIRECTORY/
      corpus-train.tfrecord-00000 ...   records of some million tokens of whole documents (tf.train.Example)
      dataset_info.json, features.json  so that `tfds.builder_from_directory(DIRECTORY)` opens it
      train.sentences.npy               int64 [sentences + 1], first token of every sentence; likewise for validation
      train.documents.npy               int64 [documents + 1], first sentence of every document
      unigram.npy                       int64 [V], how often each token stands in the train split
      tokenizer/                        the tokenizer's own files
      ledger.json                       written last: sizes, checksums, offsets of the payloads, counts, sources
      checked/HOSTNAME.json             which files a machine has compared with their checksums (`checksums`)

A record holds three byte features: `tokens` (uint16, or int32 where the vocabulary needs it), `sentence_lengths`
(int32, tokens of each sentence) and `document_lengths` (int32, sentences of each document), all little-endian. The
reader maps `tokens` where it lies inside the record, so any token is found in O(1) and reading needs no TensorFlow.
"""

import bisect
import fcntl
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from plmjax import storage
from plmjax.data import checksums, tensorflow_runtime
from plmjax.errors import UserError

FORMAT_VERSION = 2
LEDGER = "ledger.json"
SPLITS = ("train", "validation")
PIECE_TOKENS = 1 << 22
_NAME = "corpus-{split}.tfrecord-{index:05d}"
_TFDS_NAME = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
TFDS_METADATA = ("dataset_info.json", "features.json")
_LENGTHS = np.dtype("<i4")


def token_dtype(vocab_size: int) -> np.dtype:
    """Dtype of a stored token: uint16 while every id fits, int32 beyond."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


class ShardWriter:
    """Writes one file of a split; documents keep the order in which they are added.

    Files of one split may be written by different processes; their `index` fixes their order in the dataset.
    """

    def __init__(self, directory: str | os.PathLike, split: str, index: int, vocab_size: int):
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, not {split!r}.")
        self._path = Path(directory) / _NAME.format(split=split, index=index)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        (self._path.parent / LEDGER).unlink(missing_ok=True)  # what is being written is not finished
        self._file = open(self._path, "wb")  # noqa: SIM115 (closed by close)
        self._dtype = token_dtype(vocab_size)
        self._unigram = np.zeros(vocab_size, np.int64)
        self._index = index
        self._bytes = 0
        self._crc = 0
        self._pieces: list[dict[str, list[int]]] = []
        self._begin_piece()

    def _begin_piece(self) -> None:
        self._documents: list[np.ndarray] = []
        self._sentence_lengths: list[np.ndarray] = []
        self._document_lengths: list[np.ndarray] = []
        self._tokens = 0

    def add(self, document: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Appends one document, given as the token ids of each sentence; what is empty is left out."""
        lengths = [len(sentence) for sentence in document if len(sentence)]
        if lengths:
            tokens = np.fromiter(itertools.chain.from_iterable(document), np.int64, sum(lengths))
            self.extend(tokens, lengths, [len(lengths)])

    def extend(self, tokens: np.ndarray, sentence_lengths: Sequence[int], document_lengths: Sequence[int]) -> None:
        """Appends many documents back to back, none of them or of their sentences empty.

        tokens: integers [N]; sentence_lengths: tokens of each sentence; document_lengths: sentences of each document.
        """
        self._documents.append(tokens)
        self._sentence_lengths.append(np.asarray(sentence_lengths, _LENGTHS))
        self._document_lengths.append(np.asarray(document_lengths, _LENGTHS))
        self._tokens += len(tokens)
        if self._tokens >= PIECE_TOKENS:
            self._end_piece()

    def close(self) -> dict[str, Any]:
        """Finishes the file and returns its record for `finish`; a file without documents is removed."""
        self._end_piece()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self._pieces:
            self._path.unlink()
        totals = {name: sum(piece[name][1] for piece in self._pieces) for name in ("documents", "sentences", "tokens")}
        record = {"file": self._path.name, "index": self._index, "bytes": self._bytes, "crc32c": self._crc}
        return record | totals | {"pieces": self._pieces, "unigram": self._unigram}

    def _end_piece(self) -> None:
        if not self._documents:
            return
        tokens = np.concatenate(self._documents)
        if tokens.min() < 0 or tokens.max() >= len(self._unigram):
            raise ValueError(
                f"token ids must lie in 0..{len(self._unigram) - 1}; found {tokens.min()}..{tokens.max()}."
            )
        self._unigram += np.bincount(tokens, minlength=len(self._unigram))
        payloads = {
            "document_lengths": np.concatenate(self._document_lengths),
            "sentence_lengths": np.concatenate(self._sentence_lengths),
            "tokens": tokens.astype(self._dtype),
        }
        record, offsets = _example(payloads, self._bytes + _HEADER_BYTES)
        header = len(record).to_bytes(8, "little")
        for part in (header, _masked_crc(header), record, _masked_crc(record)):
            self._file.write(part)
            self._crc = google_crc32c.extend(self._crc, part)
            self._bytes += len(part)
        names = {"document_lengths": "documents", "sentence_lengths": "sentences", "tokens": "tokens"}
        self._pieces.append({names[key]: [offsets[key], len(array)] for key, array in payloads.items()})
        self._begin_piece()


# TFRecord framing: length (8 bytes), masked CRC of the length (4), the record, masked CRC of the record (4).
_HEADER_BYTES = 12


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited protocol buffer field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _example(payloads: dict[str, np.ndarray], start: int) -> tuple[bytes, dict[str, int]]:
    """A serialised tf.train.Example of byte features that begins at byte `start` of its file, and where each lies.

    It is written field by field because the reader needs the offsets. The last payload is aligned to four bytes, for
    numpy copies unaligned arrays whole: an unknown field in front takes up the slack, and every reader of protocol
    buffers skips it.
    """
    features, ends = b"", {}
    for name, array in payloads.items():
        bytes_list = _field(1, _field(1, array.tobytes()))
        features += _field(1, _field(1, name.encode()) + _field(2, bytes_list))
        ends[name] = len(features)
    body = _field(1, features)
    slack = -(start + 2 + len(body) - array.nbytes) % 4
    example = _field(15, bytes(slack)) + body
    origin = start + len(example) - len(features)
    return example, {name: origin + ends[name] - array.nbytes for name, array in payloads.items()}


def finish(
    directory: str | os.PathLike,
    shards: dict[str, list[dict[str, Any]]],
    tokenizer: Any,
    sources: list[dict[str, Any]],
    description: dict[str, Any],
) -> None:
    """Turns written shards into a dataset: offsets, TFDS metadata, tokenizer, and last of all the ledger.

    shards: split -> the records that `ShardWriter.close` returned; they are ordered by index and empty ones dropped.
    tokenizer: has save(directory), fingerprint, kind and vocabulary. sources: the input files.
    description: anything JSON that says how the dataset was made. Raises UserError when no document was written.
    """
    directory = Path(directory)
    shards = {split: sorted(shards.get(split, []), key=lambda record: record["index"]) for split in SPLITS}
    shards = {split: [record for record in records if record["pieces"]] for split, records in shards.items()}
    if not shards["train"] and shards["validation"]:
        documents = sum(record["documents"] for record in shards["validation"])
        raise UserError(
            f"Expected documents to train on for {directory}, found all {documents} held out; lower the share that is "
            "held out or add text."
        )
    if not shards["train"]:
        raise UserError(f"Text for {directory} was expected, but no document holds a token; check the input files.")
    unigram = sum(record["unigram"] for record in shards["train"])
    np.save(directory / "unigram.npy", unigram)
    ledger: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "tokenizer": {
            "fingerprint": tokenizer.fingerprint,
            "kind": tokenizer.kind,
            "vocab_size": len(unigram),
        },
        "splits": {},
        "sources": sources,
        "description": description,
    }
    names = ["unigram.npy"]
    for split, records in shards.items():
        for index, record in enumerate(records):  # TFDS counts files without gaps
            name = _NAME.format(split=split, index=index)
            os.replace(directory / record["file"], directory / name)
            records[index] = {key: value for key, value in record.items() if key != "unigram"}
            records[index] |= {"file": name, "index": index}
        totals = {name: sum(record[name] for record in records) for name in ("documents", "sentences", "tokens")}
        ledger["splits"][split] = totals | {"shards": records}
        names += _write_offsets(directory, split, ledger["splits"][split])
    listed = {record["file"] for records in shards.values() for record in records}
    for path in directory.glob("corpus-*.tfrecord-*"):  # left by a preparation that was interrupted
        if path.name not in listed:
            path.unlink()
    _write_tfds_metadata(directory, shards, token_dtype(len(unigram)))
    tokenizer.save(directory / "tokenizer")
    others = [*TFDS_METADATA, *(f"tokenizer/{name}" for name in storage.files(directory / "tokenizer"))]
    ledger["files"] = {name: checksums.sum_file(directory / name) for name in names}
    ledger["other_files"] = {name: checksums.sum_file(directory / name) for name in others}
    ledger["crc32c"] = _sum_ledger(ledger)
    storage.write(directory / LEDGER, json.dumps(ledger, indent=1))


def _sum_ledger(ledger: dict[str, Any]) -> int:
    """The checksum of what a ledger says, but for the checksum itself."""
    said = {key: value for key, value in ledger.items() if key != "crc32c"}
    return google_crc32c.value(json.dumps(said, sort_keys=True).encode())


def _write_offsets(directory: Path, split: str, entry: dict[str, Any]) -> list[str]:
    """Writes where sentences and documents of a split begin, one piece at a time; returns the files' names."""
    names = [f"{split}.sentences.npy", f"{split}.documents.npy"]
    sentences, documents = (
        np.lib.format.open_memmap(directory / name, "w+", np.int64, (entry[key] + 1,))
        for name, key in zip(names, ("sentences", "documents"), strict=True)
    )
    offsets = {"sentences": 0, "documents": 0}
    for array in (sentences, documents):
        array[0] = 0
    for record in entry["shards"]:
        data = np.memmap(directory / record["file"], np.uint8, "r")
        for piece in record["pieces"]:
            for key, array in (("sentences", sentences), ("documents", documents)):
                start, count = piece[key]
                lengths = np.frombuffer(data[start : start + 4 * count].tobytes(), _LENGTHS)
                at = offsets[key]
                array[at + 1 : at + 1 + count] = array[at] + np.cumsum(lengths, dtype=np.int64)
                offsets[key] += count
    for array in (sentences, documents):
        array.flush()
    return names


def _write_tfds_metadata(directory: Path, shards: dict[str, list[dict[str, Any]]], dtype: np.dtype) -> None:
    tfds = tensorflow_runtime.tensorflow_datasets()

    def sequence(dtype: np.dtype, doc: str) -> "tfds.features.Tensor":
        return tfds.features.Tensor(shape=(None,), dtype=dtype.newbyteorder("=").type, encoding="bytes", doc=doc)

    template = tfds.core.ShardedFileTemplate(
        data_dir=directory, template=_TFDS_NAME, dataset_name="corpus", filetype_suffix="tfrecord"
    )
    tfds.folder_dataset.write_metadata(
        data_dir=directory,
        filename_template=template,
        version="1.0.0",
        description="Documents cut into sentences and tokens; one example is a piece of many documents.",
        features=tfds.features.FeaturesDict(
            {
                "tokens": sequence(dtype, "Token ids of the piece, documents one after another."),
                "sentence_lengths": sequence(_LENGTHS, "Tokens of each sentence."),
                "document_lengths": sequence(_LENGTHS, "Sentences of each document."),
            }
        ),
        split_infos=[
            tfds.core.SplitInfo(
                name=split,
                shard_lengths=[len(record["pieces"]) for record in records],
                num_bytes=sum(record["bytes"] for record in records),
                filename_template=template,
            )
            for split, records in shards.items()
            if records
        ],
    )


class Split:
    """One split of a dataset, mapped from its files: tokens in the order they were written.

    sentence_offsets: int64 [sentences + 1], first token of every sentence; documents join without a gap.
    document_offsets: int64 [documents + 1], first sentence of every document.
    """

    def __init__(self, directory: Path, name: str, entry: dict[str, Any], dtype: np.dtype):
        self.name = name
        self.documents: int = entry["documents"]
        self.sentences: int = entry["sentences"]
        self.token_count: int = entry["tokens"]
        self.sentence_offsets = np.load(directory / f"{name}.sentences.npy", mmap_mode="r")
        self.document_offsets = np.load(directory / f"{name}.documents.npy", mmap_mode="r")
        self._pieces: list[np.ndarray] = []
        for record in entry["shards"]:
            data = np.memmap(directory / record["file"], np.uint8, "r").view(np.ndarray)
            for piece in record["pieces"]:
                start, count = piece["tokens"]
                self._pieces.append(data[start : start + count * dtype.itemsize].view(dtype))
        self._starts = [0, *itertools.accumulate(map(len, self._pieces))]

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens start..stop of the split, [stop - start] uint16 or int32; a view where they are of one document."""
        piece = bisect.bisect_right(self._starts, start) - 1
        if stop <= self._starts[min(piece + 1, len(self._pieces))]:
            return self._pieces[piece][start - self._starts[piece] : stop - self._starts[piece]]
        if not 0 <= start <= stop <= self.token_count:
            raise IndexError(f"tokens {start}..{stop} were asked of {self.token_count}.")
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


class Dataset:
    """A finished prepared dataset; made by `open_dataset`."""

    def __init__(self, directory: Path, ledger: dict[str, Any]):
        self.directory = directory
        self.ledger = ledger
        self.vocab_size: int = ledger["tokenizer"]["vocab_size"]
        self.tokenizer_fingerprint: str = ledger["tokenizer"]["fingerprint"]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of what the dataset holds, hex: the same wherever it lies and whenever it was prepared."""
        files = {name: [entry["bytes"], entry["crc32c"]] for name, entry in _data_files(self.ledger).items()}
        contents = [FORMAT_VERSION, self.tokenizer_fingerprint, files]
        return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()

    def split(self, name: str) -> Split:
        """The split "train" or "validation"."""
        return Split(self.directory, name, self.ledger["splits"][name], token_dtype(self.vocab_size))

    @functools.cached_property
    def unigram_counts(self) -> np.ndarray:
        """How often each token stands in the train split, int64 [V]."""
        return np.load(self.directory / "unigram.npy")


def _data_files(ledger: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The files that the reader takes tokens and places from, each with its size and checksum."""
    records = (record for entry in ledger["splits"].values() for record in entry["shards"])
    return {record["file"]: record for record in records} | ledger["files"]


def _files(ledger: dict[str, Any]) -> dict[str, dict[str, int]]:
    """All files of the dataset, the tokenizer's and TFDS's among them."""
    return _data_files(ledger) | ledger["other_files"]


def _damaged(path: Path) -> UserError:
    return UserError(
        f"Expected {path} as it was prepared, found that its checksum differs: the file is damaged; copy the dataset "
        "again or prepare it again."
    )


def _copied(dataset: Dataset, say: Callable[[str], None]) -> Path:
    """The copy of a bucket's dataset in the user's cache folder, made where there is none: files are mapped from disks.

    It gets its name, the fingerprint, when every file has the ledger's checksum, so an interrupted copy is never used;
    one that was damaged since is made anew. Processes of one machine wait for the one that copies; it may die.
    """
    copy = storage.cache("datasets", dataset.fingerprint)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with open(copy.with_name(f"{copy.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = storage.files(copy)
        expected = _files(dataset.ledger)
        whole = all(name in found and found[name].size == expected[name]["bytes"] for name in expected)
        if whole and checksums.damaged(copy, expected, say) is None:
            return copy
        unfinished = copy.with_name(f"{copy.name}.copying")
        storage.remove(copy)
        storage.remove(unfinished)
        storage.fetch(dataset.directory, unfinished)
        if bad := checksums.differing(unfinished, expected):
            raise _damaged(dataset.directory / bad)
        unfinished.rename(copy)
        checksums.note(copy, expected)
    return copy


def open_dataset(
    directory: str | os.PathLike, *, vocab_size: int | None = None, say: Callable[[str], None] = lambda line: None
) -> Dataset:
    """Opens a prepared dataset after checking that it is whole: every file there, with the ledger's size and checksum.

    Files are read for it once on a machine (see `checksums`); `say` is told when that took its time.

    vocab_size: rows of the model's embedding, which must cover every token id. Raises UserError when the folder is
    missing, was never finished, is of another format version, misses a file, has a truncated or damaged one, or holds
    more tokens than the model knows.
    """
    directory = storage.path(directory)
    if not directory.is_dir():
        raise UserError(f"Expected a prepared dataset at {directory}, found no folder; run plmjax prepare.")
    try:
        text = (directory / LEDGER).read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"A prepared dataset was expected at {directory}, but it has no {LEDGER}: its preparation never finished; "
            "run plmjax prepare again."
        ) from None
    try:
        ledger = json.loads(text)
        version = ledger["version"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{directory / LEDGER} was expected to be a ledger but is damaged; prepare again.") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{directory} was expected in dataset format {FORMAT_VERSION} but is in format {version}; prepare it again."
        )
    if ledger.get("crc32c") != _sum_ledger(ledger):
        raise _damaged(directory / LEDGER)
    found = storage.files(directory)
    for name, expected in _files(ledger).items():
        path = directory / name
        if name not in found:
            raise UserError(f"{path} was expected as part of the dataset but is missing; prepare the dataset again.")
        if found[name].size != expected["bytes"]:
            raise UserError(
                f"{path} was expected to have {expected['bytes']} bytes but has {found[name].size}; it was "
                "truncated or changed, so prepare the dataset again."
            )
    dataset = Dataset(directory, ledger)
    if storage.in_bucket(directory):
        dataset = Dataset(_copied(dataset, say), ledger)
    elif bad := checksums.damaged(directory, _files(ledger), say):
        raise _damaged(directory / bad)
    if vocab_size is not None and dataset.vocab_size > vocab_size:
        raise UserError(
            f"A dataset of at most {vocab_size} tokens was expected, the model's vocabulary, but {directory} was "
            f"prepared with {dataset.vocab_size}; use the model's tokenizer or raise its vocab_size."
        )
    return dataset
