"""Writes a prepared dataset: shards of tokens, possibly from several processes, and the manifest last."""

import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from plmjax.data import checksums, tensorflow_runtime
from plmjax.data.store.manifest import (
    FIELDS,
    FORMAT_VERSION,
    LENGTHS,
    MANIFEST,
    NUMBERS,
    RECORD,
    SPLITS,
    TEXT,
    TFDS_METADATA,
    check_names,
    field_file,
    manifest_checksum,
    offset_files,
    token_dtype,
    unigram_file,
)
from plmjax.errors import UserError
from plmjax.files import storage

PIECE_TOKENS = 1 << 22
_NAME = "corpus-{split}.tfrecord-{index:05d}"
_TFDS_NAME = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
_PARTS = ("document_lengths", "sentence_lengths", "tokens")


class Tokens(NamedTuple):
    """Documents of one stream, concatenated: ids [N], tokens of each sentence, sentences of each document."""

    ids: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray


class ShardWriter:
    """Writes one file of a split. Documents keep the order in which they are added.

    Files of one split may be written by different processes. Their `index` determines their order in the dataset.

    streams: names of the texts of every document. fields: names of the numbers of every document.
    piece_tokens: minimum number of tokens of a record, over all streams; None takes `PIECE_TOKENS`. Documents that are
        added together stay together.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        split: str,
        index: int,
        *,
        vocab_size: int,
        streams: Sequence[str] = (TEXT,),
        fields: Sequence[str] = (),
        piece_tokens: int | None = None,
    ):
        if split not in SPLITS:
            raise ValueError(f"Expected a split among {SPLITS}, found {split!r}.")
        check_names(streams, fields)
        self._path = Path(directory) / _NAME.format(split=split, index=index)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        (self._path.parent / MANIFEST).unlink(missing_ok=True)  # the dataset is not finished while it is written
        self._file = open(self._path, "wb")  # noqa: SIM115 (closed by close)
        self._dtype = token_dtype(vocab_size)
        self._streams, self._fields = tuple(streams), tuple(fields)
        self._unigram = {stream: np.zeros(vocab_size, np.int64) for stream in streams}
        self._index = index
        self._piece_tokens = piece_tokens or PIECE_TOKENS
        self._bytes = 0
        self._crc = 0
        self._pieces: list[dict[str, list[int]]] = []
        self._begin_piece()

    def _begin_piece(self) -> None:
        self._texts: dict[str, list[Tokens]] = {stream: [] for stream in self._streams}
        self._numbers: dict[str, list[np.ndarray]] = {name: [] for name in self._fields}
        self._tokens = 0

    def add(
        self, document: Mapping[str, Sequence[Sequence[int] | np.ndarray]], fields: Mapping[str, float] | None = None
    ) -> None:
        """Append one document: for each stream the token ids of each sentence.

        Empty sentences are left out, and so is a document with an empty stream.
        """
        texts = {}
        for stream, sentences in document.items():
            lengths = [len(sentence) for sentence in sentences if len(sentence)]
            ids = np.fromiter(itertools.chain.from_iterable(sentences), np.int64, sum(lengths))
            texts[stream] = Tokens(ids, np.array(lengths), np.array([len(lengths)]))
        if all(len(text.ids) for text in texts.values()):
            self.extend(texts, {name: np.array([number]) for name, number in (fields or {}).items()})

    def extend(self, texts: Mapping[str, Tokens], fields: Mapping[str, np.ndarray] | None = None) -> None:
        """Append many documents. No document or sentence may be empty. fields: name -> one number for each document."""
        for stream in self._streams:
            self._texts[stream].append(texts[stream])
            self._tokens += len(texts[stream].ids)
        for name in self._fields:
            self._numbers[name].append(np.asarray(fields[name]))
        if self._tokens >= self._piece_tokens:
            self._end_piece()

    def close(self) -> dict[str, Any]:
        """Finish the file and return its record for `finish`. Remove a file without documents."""
        self._end_piece()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self._pieces:
            self._path.unlink()

        def total(part: str) -> int:
            return sum(piece[part][1] for piece in self._pieces)

        totals = {"documents": total(f"{self._streams[0]}/document_lengths")}
        totals["streams"] = {
            stream: {"sentences": total(f"{stream}/sentence_lengths"), "tokens": total(f"{stream}/tokens")}
            for stream in self._streams
        }
        record = {"file": self._path.name, "index": self._index, "bytes": self._bytes, "crc32c": self._crc}
        return record | totals | {"fields": self._fields, "pieces": self._pieces, "unigram": self._unigram}

    def _end_piece(self) -> None:
        if not self._tokens:
            return
        payloads = {}
        for stream, texts in self._texts.items():
            ids, sentence_lengths, document_lengths = (np.concatenate(arrays) for arrays in zip(*texts, strict=True))
            size = len(self._unigram[stream])
            if ids.min() < 0 or ids.max() >= size:
                raise ValueError(f"Expected token ids in 0..{size - 1}, found {ids.min()}..{ids.max()}.")
            self._unigram[stream] += np.bincount(ids, minlength=size)
            parts = (document_lengths.astype(LENGTHS), sentence_lengths.astype(LENGTHS), ids.astype(self._dtype))
            payloads |= {f"{stream}/{part}": array for part, array in zip(_PARTS, parts, strict=True)}
        payloads |= {
            f"{FIELDS}/{name}": np.concatenate(numbers).astype(NUMBERS) for name, numbers in self._numbers.items()
        }
        record, offsets = _example(payloads, self._bytes + _HEADER_BYTES)
        header = len(record).to_bytes(8, "little")
        start, crc = self._bytes, 0
        for part in (header, _masked_crc(header), record, _masked_crc(record)):
            self._file.write(part)
            self._crc, crc = checksums.crc32c(part, self._crc), checksums.crc32c(part, crc)
            self._bytes += len(part)
        places = {name: [offsets[name], len(array)] for name, array in payloads.items()}
        self._pieces.append(places | {RECORD: [start, self._bytes - start, crc]})
        self._begin_piece()


# TFRecord framing: length (8 bytes), masked CRC of the length (4), the record, masked CRC of the record (4).
_HEADER_BYTES = 12
_ALIGNMENT = 8


def _masked_crc(data: bytes) -> bytes:
    crc = checksums.crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    """Return a length-delimited protocol buffer field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _example(payloads: dict[str, np.ndarray], start: int) -> tuple[bytes, dict[str, int]]:
    """Return a serialized tf.train.Example of byte features at byte `start` of its file, and the features' offsets.

    It is written field by field because the reader needs the offsets. Every payload is aligned, because numpy would
    copy unaligned data. An unknown field before the payload fills the gap; every reader of protocol buffers skips it.
    Each feature is in a Features message of its own, and readers merge these.
    """
    parts, size, offsets = [], 0, {}
    for name, array in payloads.items():
        data = array.tobytes()
        feature = _field(1, _field(1, data))  # Feature.bytes_list, BytesList.value
        body = _field(1, _field(1, _field(1, name.encode()) + _field(2, feature)))  # ends with the data
        before = start + size + 2 + len(body) - len(data)
        gap = -before % _ALIGNMENT
        parts += [_field(15, bytes(gap)), body]
        offsets[name] = before + gap
        size += 2 + gap + len(body)
    return b"".join(parts), offsets


def unigram(records: Iterable[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return a dict from stream to the occurrences of each token in shards, int64 [V]; empty without shards.

    records: results of `ShardWriter.close`.
    """
    totals: dict[str, np.ndarray] = {}
    for record in records:
        for stream, counts in record["unigram"].items():
            totals[stream] = totals.get(stream, 0) + counts
    return totals


def finish(
    directory: str | os.PathLike,
    shards: dict[str, list[dict[str, Any]]],
    tokenizer: Any,
    *,
    sources: list[dict[str, Any]],
    description: dict[str, Any],
    reports: Mapping[str, str] = MappingProxyType({}),
    unigrams: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Turn written shards into a dataset: write offsets, TFDS metadata, the tokenizer, and the manifest last.

    shards: split -> the records that `ShardWriter.close` returned. They are sorted by index, and empty ones are
    dropped. A file may be in a folder below `directory`, from which it is moved.
    tokenizer: object with save(directory), fingerprint, kind and vocabulary.
    sources: input files.
    description: any JSON that describes the preparation.
    reports: name -> text of further files that belong to the dataset.
    unigrams: result of `unigram` for the training split; None computes it from the records.

    Raises:
        UserError: the training split has no document.
    """
    directory = storage.path(directory)
    shards = {split: sorted(shards.get(split, []), key=lambda record: record["index"]) for split in SPLITS}
    shards = {split: [record for record in records if record["pieces"]] for split, records in shards.items()}
    if not shards["train"] and shards["validation"]:
        documents = sum(record["documents"] for record in shards["validation"])
        raise UserError(
            f"Expected documents to train on for {directory}, found all {documents} held out; lower the share that is "
            "held out or add text."
        )
    if not shards["train"]:
        raise UserError(f"Expected text for {directory}, found no document that holds a token; check the input files.")
    streams, fields = shards["train"][0]["streams"], shards["train"][0]["fields"]
    unigrams = unigram(shards["train"]) if unigrams is None else unigrams
    vocab_size = len(unigrams[next(iter(streams))])
    manifest: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "tokenizer": {
            "fingerprint": tokenizer.fingerprint,
            "kind": tokenizer.kind,
            "vocab_size": vocab_size,
        },
        "streams": list(streams),
        "fields": list(fields),
        "splits": {},
        "sources": sources,
        "description": description,
    }
    for split, records in shards.items():
        manifest["splits"][split] = _rename_shards(directory, split, records, streams)
    listed = {record["file"] for records in shards.values() for record in records}
    for path in directory.glob("corpus-*.tfrecord-*"):  # left by an interrupted preparation
        if path.name not in listed:
            path.unlink()
    with storage.output(directory, last=MANIFEST) as folder:
        names = []
        for stream in streams:
            _save(folder / unigram_file(stream), unigrams[stream].dtype, len(unigrams[stream]), [unigrams[stream]])
            names.append(unigram_file(stream))
        for split, entry in manifest["splits"].items():
            for stream in streams:
                names += _write_offsets(directory, folder, split, stream=stream, entry=entry)
            names += [_write_field(directory, folder, split, name=name, entry=entry) for name in fields]
        for name, text in reports.items():
            storage.write(folder / name, text)
        _write_tfds_metadata(folder, shards, token_dtype(vocab_size), streams=streams, fields=fields)
        tokenizer.save(folder / "tokenizer")
        others = [*TFDS_METADATA, *reports, *(f"tokenizer/{name}" for name in storage.files(folder / "tokenizer"))]
        manifest["files"] = {name: checksums.sum_file(folder / name) for name in names}
        manifest["other_files"] = {name: checksums.sum_file(folder / name) for name in others}
        manifest["crc32c"] = manifest_checksum(manifest)
        storage.write(folder / MANIFEST, json.dumps(manifest, indent=1))


def _rename_shards(
    directory: Path, split: str, records: list[dict[str, Any]], streams: Iterable[str]
) -> dict[str, Any]:
    """Move the shards of a split to their names in the dataset. Return its entry of the manifest."""
    for index, record in enumerate(records):  # TFDS counts files without gaps
        name = _NAME.format(split=split, index=index)
        if record["file"] != name:
            storage.move(directory / record["file"], directory / name)
        records[index] = {key: value for key, value in record.items() if key not in ("unigram", "fields")}
        records[index] |= {"file": name, "index": index}
    totals = {
        stream: {part: sum(record["streams"][stream][part] for record in records) for part in ("sentences", "tokens")}
        for stream in streams
    }
    return {"documents": sum(record["documents"] for record in records), "streams": totals, "shards": records}


def _payloads(directory: Path, entry: dict[str, Any], name: str, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yield one feature of every piece of a split, in order."""
    for record in entry["shards"]:
        with (directory / record["file"]).open("rb") as file:
            for piece in record["pieces"]:
                start, count = piece[name]
                file.seek(start)
                yield np.frombuffer(file.read(dtype.itemsize * count), dtype)


def _write_offsets(directory: Path, folder: Path, split: str, *, stream: str, entry: dict[str, Any]) -> list[str]:
    """Write the sentence and document offsets of a stream into `folder`, one piece at a time. Return the file names."""
    names = offset_files(split, stream)
    counts = entry["streams"][stream]["sentences"], entry["documents"]
    for name, part, count in zip(names, ("sentence_lengths", "document_lengths"), counts, strict=True):
        lengths = _payloads(directory, entry, f"{stream}/{part}", LENGTHS)
        _save(folder / name, np.dtype(np.int64), count + 1, _offsets(lengths))
    return list(names)


def _write_field(directory: Path, folder: Path, split: str, *, name: str, entry: dict[str, Any]) -> str:
    """Write one number for every document into `folder`. Return the file name."""
    file = field_file(split, name)
    numbers = _payloads(directory, entry, f"{FIELDS}/{name}", NUMBERS)
    _save(folder / file, NUMBERS, entry["documents"], numbers)
    return file


def _offsets(lengths: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield 0, and then the cumulative sums of all lengths, as int64 arrays."""
    at = np.zeros(1, np.int64)
    yield at
    for part in lengths:
        sums = at[-1] + np.cumsum(part, dtype=np.int64)
        yield sums
        at = sums if len(sums) else at


def _save(path: Path, dtype: np.dtype, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write numbers to a .npy file in parts.

    np.save would raise an error without errno for a full disk, and a memory-mapped file would end the process.
    """
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype))


def _write_tfds_metadata(
    folder: Path,
    shards: dict[str, list[dict[str, Any]]],
    dtype: np.dtype,
    *,
    streams: Iterable[str],
    fields: Iterable[str],
) -> None:
    tfds = tensorflow_runtime.tensorflow_datasets()

    def sequence(dtype: np.dtype, doc: str) -> "tfds.features.Tensor":
        return tfds.features.Tensor(shape=(None,), dtype=dtype.newbyteorder("=").type, encoding="bytes", doc=doc)

    text = {
        "tokens": sequence(dtype, "Token ids of the piece, documents one after another."),
        "sentence_lengths": sequence(LENGTHS, "Tokens of each sentence."),
        "document_lengths": sequence(LENGTHS, "Sentences of each document."),
    }
    features = dict.fromkeys(streams, text)
    if fields := {name: sequence(NUMBERS, "A number of each document.") for name in fields}:
        features[FIELDS] = fields
    # TFDS looks for the files of the data by their names. In a bucket they are not in this folder.
    with tempfile.TemporaryDirectory() as scratch:
        for record in itertools.chain.from_iterable(shards.values()):
            Path(scratch, record["file"]).touch()
        template = tfds.core.ShardedFileTemplate(
            data_dir=scratch, template=_TFDS_NAME, dataset_name="corpus", filetype_suffix="tfrecord"
        )
        tfds.folder_dataset.write_metadata(
            data_dir=scratch,
            filename_template=template,
            version="1.0.0",
            description="Documents cut into sentences and tokens; one example is a piece of many documents.",
            features=tfds.features.FeaturesDict(features),
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
            check_data=False,
        )
        for name in TFDS_METADATA:
            storage.write(folder / name, Path(scratch, name).read_bytes())
