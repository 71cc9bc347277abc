"""What the writer and the reader of a prepared dataset agree on: names, dtypes, and the ledger's own checksum."""

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from plmjax import json_text
from plmjax.data import checksums
from plmjax.errors import UserError, quoted
from plmjax.json_text import COUNT

FORMAT_VERSION = 3
LEDGER = "ledger.json"
SPLITS = ("train", "validation")
TEXT = "text"
"""The stream of a dataset that has one."""
FIELDS = "fields"
"""What stands in the place of a stream's name for the documents' own numbers."""
TFDS_METADATA = ("dataset_info.json", "features.json")
LENGTHS = np.dtype("<i4")
NUMBERS = np.dtype("<f8")

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def token_dtype(vocab_size: int) -> np.dtype:
    """Dtype of a stored token: uint16 while every id fits, int32 beyond."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def check_names(streams: Iterable[str], fields: Iterable[str]) -> None:
    """Raises UserError for a stream or a field of documents whose name cannot be part of a file's name."""
    for name in (*streams, *fields):
        if not _NAME.fullmatch(name) or name == FIELDS:
            raise UserError(
                f"Expected a name of small letters, digits and underscores for a stream or a field, other than "
                f"{FIELDS!r}, found {quoted(name)}; rename it."
            )


def offset_files(split: str, stream: str) -> tuple[str, str]:
    """The files that say where sentences, and where documents, begin."""
    return f"{split}.{stream}.sentences.npy", f"{split}.{stream}.documents.npy"


def field_file(split: str, name: str) -> str:
    """The file of a number that documents have."""
    return f"{split}.{FIELDS}.{name}.npy"


def unigram_file(stream: str) -> str:
    """The file of how often each token stands in a stream."""
    return f"unigram.{stream}.npy"


_LONGEST_NAME = 255
"""Characters of a file's name, the folder in it included."""
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


def check(ledger: Any) -> None:
    """Raises ValueError where a ledger is not as `writer.finish` writes it: its types, its names, its places."""
    json_text.check(ledger, _SHAPE)
    check_names(ledger["streams"], ledger["fields"])
    for name in all_files(ledger):
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"a file is named {quoted(name)}")
    width = token_dtype(ledger["tokenizer"]["vocab_size"]).itemsize
    for split, entry in ledger["splits"].items():
        for stream in ledger["streams"]:
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


def sum_ledger(ledger: dict[str, Any]) -> int:
    """The checksum of what a ledger says, but for the checksum itself."""
    said = {key: value for key, value in ledger.items() if key != "crc32c"}
    return checksums.crc32c(json.dumps(said, sort_keys=True).encode())


def data_files(ledger: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The files that the reader takes tokens and places from, each with its size and checksum."""
    records = (record for entry in ledger["splits"].values() for record in entry["shards"])
    return {record["file"]: record for record in records} | ledger["files"]


def all_files(ledger: dict[str, Any]) -> dict[str, dict[str, int]]:
    """All files of the dataset, the tokenizer's and TFDS's among them."""
    return data_files(ledger) | ledger["other_files"]
