"""The files of a unit of a preparation, in a folder of its own. Each kind has a file that is written last.

UNIT/
  stage-N.documents.jsonl.gz  what stage N of the cleaning leaves, [place, text] in a line
  stage-N.keys.npz            the keys of its last rule: those of all documents, and how many each has
  stage-N.json                written last: the counts of the rules
  stage-N.repeated.npz        the parts that occurred before: those of all documents, and how many each has
  corpus-SPLIT.tfrecord-N     the tokens, as in the dataset
  unigram.npz                 occurrences of each token in the training text, by stream
  unit.json                   written last: the records of the files of tokens, and counts

While the documents of a stage are compared, the folder with the units has

stage-N.part-P-of-Q.npz       for each unit, a bit for each of its keys in part P: whether the key occurred before
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import json_text, storage
from plmjax.data import formats, store
from plmjax.errors import UserError
from plmjax.json_text import COUNT

FOLDER = "units"
"""Folder in that of the dataset."""
WRITTEN = "unit.json"
UNIGRAM = "unigram.npz"


_COUNT = {"documents": COUNT, "characters": COUNT}
_COUNTS = {
    "read": _COUNT,
    "kept": _COUNT,
    "effects": [{"dropped": _COUNT, "changed": _COUNT, "examples": [[str]]}],
}
_WRITTEN = {
    "shards": {split: [{"file": str, "streams": {str: {"tokens": COUNT}}}] for split in store.SPLITS},
    "unknown": [COUNT],
    "counts": _COUNTS,
}


def folder(output: Path, index: int) -> Path:
    """Return the folder of a unit."""
    return output / FOLDER / f"{index:05d}"


def screened(number: int) -> str:
    """Return the name of the last file of a stage of the cleaning."""
    return f"stage-{number}.json"


def is_written(unit: Path) -> bool:
    """Return whether a unit has its tokens. Files that were moved before a stop are missing."""
    if not (unit / WRITTEN).is_file():
        return False
    records = counts(unit / WRITTEN)["shards"].values()
    return all((unit / record["file"]).is_file() for shards in records for record in shards)


def counts(path: Path) -> dict[str, Any]:
    """Return the contents of `WRITTEN`, or of the last file of a stage.

    Raises:
        UserError: the file is damaged.
    """
    try:
        found = json_text.parse(storage.contents(path))
        json_text.check(found, _WRITTEN if path.name == WRITTEN else _COUNTS)
    except ValueError as error:
        raise UserError(
            f"Expected a finished unit of a preparation at {path}, found {json_text.reason(error)}; remove the folder "
            f"{path.parent} and run the command again."
        ) from error
    return found


def write_documents(path: Path, documents: Iterable[formats.Document]) -> None:
    """Write documents without markup to a local file."""
    with gzip.open(path, "wt", encoding="utf-8", errors="surrogatepass", compresslevel=1) as file:
        for document in documents:
            file.write(json.dumps([document.place, document.text], ensure_ascii=False) + "\n")


def documents(unit: Path, number: int) -> Iterator[formats.Document]:
    """Yield the documents that a stage of the cleaning left."""
    with (
        documents_file(unit, number).open("rb") as raw,
        gzip.open(raw, "rt", encoding="utf-8", errors="surrogatepass") as file,
    ):
        for line in file:
            yield formats.Document("text", *json_text.parse(line))


def documents_file(unit: Path, number: int) -> Path:
    """Return the path of the documents of a stage."""
    return unit / f"stage-{number}.documents.jsonl.gz"


def keys_file(unit: Path, number: int) -> Path:
    """Return the path of the keys of a stage."""
    return unit / f"stage-{number}.keys.npz"


def repeated_file(unit: Path, number: int) -> Path:
    """Return the path of the repeated parts of a stage."""
    return unit / f"stage-{number}.repeated.npz"


def part_file(output: Path, number: int, part: int, parts: int) -> Path:
    """Return the path of what is known of one part of the keys of a stage."""
    return output / FOLDER / f"stage-{number}.part-{part}-of-{parts}.npz"


def write_arrays(path: Path, arrays: list[np.ndarray], dtype: type) -> None:
    """Write arrays of different lengths completely or not at all."""
    values = np.concatenate([np.empty(0, dtype), *arrays])
    with storage.replacing(path) as file, file.open("wb") as opened:
        np.savez(opened, values=values, lengths=np.array([len(array) for array in arrays], np.int64))


def arrays(path: Path) -> list[np.ndarray]:
    """Return the arrays of a file of `write_arrays`."""
    return split(*joined(path))


def split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Return arrays of the lengths that follow each other in `values`."""
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def joined(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays of a file of `write_arrays`, one after another, and their lengths."""
    with path.open("rb") as file, np.load(file) as stored:
        return stored["values"], stored["lengths"]


def lengths(path: Path) -> np.ndarray:
    """Return the lengths of the arrays of a file of `write_arrays`."""
    with path.open("rb") as file, np.load(file) as stored:
        return stored["lengths"]
