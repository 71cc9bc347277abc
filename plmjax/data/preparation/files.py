"""The files of a unit of a preparation, in its folder. Each kind has a seal (files/seals.py), written last.

UNIT/
  stage-N.documents.jsonl.gz  the documents after stage N of the cleaning, [place, text] per line
  stage-N.keys.npz            the keys of its last rule: of all documents, and the number of keys of each
  stage-N.json                the seal of both, with the counts of the rules
  stage-N.repeated.npz        mask of the repeated parts: of all documents, and the number of parts of each
  stage-N.repeated.json       its seal
  corpus-SPLIT.tfrecord-N     the tokens, as in the dataset
  unigram.npz                 occurrences of each token in the training text, by stream
  unit.json                   the seal of both, with the records of the files of tokens, and counts

While the documents of a stage are compared, the folder with the units has

stage-N.part-P-of-Q.npz       for each unit, a bit for each of its keys in part P: whether the key occurred before
stage-N.part-P-of-Q.json      its seal
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.data import formats
from plmjax.errors import UserError
from plmjax.files import json_text, seals, storage

FOLDER = "units"
"""Folder of the units, in the folder of the dataset."""
WRITTEN = "unit.json"
UNIGRAM = "unigram.npz"


def folder(output: Path, index: int) -> Path:
    """Return the folder of a unit."""
    return output / FOLDER / f"{index:05d}"


def screened_file(number: int) -> str:
    """Return the name of the last file of a stage of the cleaning."""
    return f"stage-{number}.json"


def is_written(unit: Path, made_from: str) -> bool:
    """Return whether a unit has all files of its tokens. A stopped preparation may have moved some to the dataset."""
    return seals.read(unit / WRITTEN, made_from) is not None


def is_screened(unit: Path, number: int, made_from: str) -> bool:
    """Return whether a stage of a unit is done. Its documents are removed once the next stage is done."""
    later = (unit / screened_file(number + 1)).exists() and is_screened(unit, number + 1, made_from)
    ignored = [documents_file(unit, number).name] if later or is_written(unit, made_from) else []
    return seals.read(unit / screened_file(number), made_from, ignored) is not None


def counts(seal: Path, made_from: str) -> dict[str, Any]:
    """Return the content of the seal `WRITTEN`, or of the seal of a stage.

    Raises:
        UserError: the seal was changed after it was written.
    """
    found = seals.read(seal, made_from, ignored=None)
    if found is None:
        raise UserError(
            f"Expected the finished unit of this preparation at {seal}, found it changed meanwhile; run the command "
            f"again."
        )
    return found.content


def write_documents(path: Path, documents: Iterable[formats.Document]) -> None:
    """Write documents without markup to a local file."""
    with gzip.open(path, "wt", encoding="utf-8", errors="surrogatepass", compresslevel=1) as file:
        for document in documents:
            file.write(json.dumps([document.place, document.text], ensure_ascii=False) + "\n")


def documents(unit: Path, number: int) -> Iterator[formats.Document]:
    """Yield the documents after a stage of the cleaning."""
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
    """Return the path of the comparison of one part of the keys of a stage."""
    return output / FOLDER / f"stage-{number}.part-{part}-of-{parts}.npz"


def seal_of(path: Path) -> Path:
    """Return the path of the seal of a file of arrays that is sealed separately."""
    return path.with_suffix(".json")


def is_sealed(path: Path, made_from: str) -> bool:
    """Return whether a separately sealed file of arrays exists and is unchanged."""
    return seals.read(seal_of(path), made_from) is not None


def write_arrays(path: Path, arrays: list[np.ndarray], dtype: type) -> None:
    """Write arrays of different lengths completely or not at all."""
    values = np.concatenate([np.empty(0, dtype), *arrays])
    with storage.replace_file(path) as file, file.open("wb") as opened:
        np.savez(opened, values=values, lengths=np.array([len(array) for array in arrays], np.int64))


def arrays(path: Path) -> list[np.ndarray]:
    """Return the arrays of a file of `write_arrays`."""
    return split(*concatenate(path))


def split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Split `values` into consecutive arrays of these lengths."""
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def concatenate(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated arrays of a file of `write_arrays`, and their lengths."""
    with path.open("rb") as file, np.load(file) as stored:
        return stored["values"], stored["lengths"]


def lengths(path: Path) -> np.ndarray:
    """Return the lengths of the arrays of a file of `write_arrays`."""
    with path.open("rb") as file, np.load(file) as stored:
        return stored["lengths"]
