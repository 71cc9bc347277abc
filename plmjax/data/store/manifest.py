"""Names, dtypes and the manifest's checksum, shared by the writer and the reader of a prepared dataset."""

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from plmjax.data import checksums
from plmjax.errors import UserError, quoted
from plmjax.files import json_text
from plmjax.files.json_text import COUNT

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
SPLITS = ("train", "validation")
TEXT = "text"
"""Stream name of a dataset with a single stream."""
FIELDS = "fields"
"""Name that replaces the stream's name in files of numeric document fields."""
RECORD = "record"
"""Key of a piece in the manifest, for the place of its record: [first byte in the file, number of bytes, CRC-32C]."""
TFDS_METADATA = ("dataset_info.json", "features.json")
LENGTHS = np.dtype("<i4")
NUMBERS = np.dtype("<f8")

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of a stored token: uint16 if every id fits, else int32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def check_names(streams: Iterable[str], fields: Iterable[str]) -> None:
    """Raise UserError for a stream or a document field whose name cannot be part of a file name."""
    for name in (*streams, *fields):
        if not _NAME.fullmatch(name) or name == FIELDS:
            raise UserError(
                f"Expected a name of small letters, digits and underscores for a stream or a field, other than "
                f"{FIELDS!r}, found {quoted(name)}; rename it."
            )


def offset_files(split: str, stream: str) -> tuple[str, str]:
    """Return the names of the files with sentence offsets and document offsets."""
    return f"{split}.{stream}.sentences.npy", f"{split}.{stream}.documents.npy"


def field_file(split: str, name: str) -> str:
    """Return the name of the file with a numeric document field."""
    return f"{split}.{FIELDS}.{name}.npy"


def unigram_file(stream: str) -> str:
    """Return the name of the file with the number of times that each token occurs in a stream."""
    return f"unigram.{stream}.npy"


_LONGEST_NAME = 255
"""Maximum number of characters of a file name, with its folder."""
_FILE = {"bytes": COUNT, "crc32c": COUNT}
_SHAPE = {
    "version": COUNT,
    "tokenizer": {"fingerprint": str, "vocab_size": range(1, 2**31)},
    "streams": [str],
    "fields": [str],
    "splits": {
        split: {
            "documents": COUNT,
            "streams": {str: {"sentences": COUNT, "tokens": COUNT}},
            "shards": [{"file": str, "pieces": [{str: [COUNT]}], **_FILE}],
        }
        for split in SPLITS
    },
    "sources": [object],
    "description": {str: object},
    "files": {str: _FILE},
    "other_files": {str: _FILE},
}


def check(manifest: Any) -> None:
    """Raise ValueError if the types, names or offsets of a manifest are not as `writer.finish` writes them."""
    json_text.check(manifest, _SHAPE)
    check_names(manifest["streams"], manifest["fields"])
    for name in all_files(manifest):
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"a file is named {quoted(name)}")
    width = token_dtype(manifest["tokenizer"]["vocab_size"]).itemsize
    of_stream = {"tokens": width, "sentence_lengths": LENGTHS.itemsize, "document_lengths": LENGTHS.itemsize}
    widths = {f"{stream}/{part}": size for stream in manifest["streams"] for part, size in of_stream.items()}
    widths |= {f"{FIELDS}/{name}": NUMBERS.itemsize for name in manifest["fields"]}
    for split, entry in manifest["splits"].items():
        for stream in manifest["streams"]:
            if stream not in entry["streams"]:
                raise ValueError(f"{split} has no stream {stream}")
            tokens = 0
            for record in entry["shards"]:
                for piece in record["pieces"]:
                    place = piece.get(f"{stream}/tokens", [])
                    if len(place) != 2 or place[0] + place[1] * width > record["bytes"]:
                        raise ValueError(f"a piece of {quoted(record['file'])} is at {quoted(place)}")
                    tokens += place[1]
            if tokens != entry["streams"][stream]["tokens"]:
                raise ValueError(f"the pieces of {split} have {tokens} tokens")
        for shard in entry["shards"]:
            _check_ranges(shard, widths)


def _check_ranges(shard: dict[str, Any], widths: dict[str, int]) -> None:
    """Raise ValueError unless the ranges of a file's records are consecutive and contain their payloads.

    Files of earlier versions have no ranges.

    widths: name of a payload -> bytes of each of its numbers.
    """
    if not any(RECORD in piece for piece in shard["pieces"]):
        return
    end = 0
    for piece in shard["pieces"]:
        begin, last = end, end
        payloads = {name: place for name, place in piece.items() if name != RECORD}
        if len(record := piece.get(RECORD, [])) == 3 and record[0] == begin:
            last = end = begin + record[1]
        whole = payloads.keys() == widths.keys() and all(
            len(place) == 2 and begin < place[0] and place[0] + place[1] * widths[name] < last
            for name, place in payloads.items()
        )
        if not whole:
            raise ValueError(f"a range cuts a record of {quoted(shard['file'])} at byte {begin}")
    if end != shard["bytes"]:
        raise ValueError(f"a range cuts a record of {quoted(shard['file'])} at byte {end}")


def manifest_checksum(manifest: dict[str, Any]) -> int:
    """Return the checksum of a manifest's contents without the checksum entry itself."""
    contents = {key: value for key, value in manifest.items() if key != "crc32c"}
    return checksums.crc32c(json.dumps(contents, sort_keys=True).encode())


def data_files(manifest: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return the files that hold tokens and offsets, each with its size and checksum."""
    records = (record for entry in manifest["splits"].values() for record in entry["shards"])
    return {record["file"]: record for record in records} | manifest["files"]


def all_files(manifest: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return all files of the dataset, including those of the tokenizer and of TFDS."""
    return data_files(manifest) | manifest["other_files"]
