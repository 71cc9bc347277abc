"""What the writer and the reader of a prepared dataset agree on: names, dtypes, and the ledger's own checksum."""

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from plmjax.data import checksums
from plmjax.errors import UserError, quoted

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
