"""Labelled sentences and sentence pairs, read from tsv, csv or jsonl files with named columns."""

import csv
import dataclasses
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax import storage
from plmjax.errors import UserError, nearest

SUFFIXES = {".tsv": "\t", ".csv": ",", ".jsonl": ""}
"""Suffix of a file (before .gz) -> what stands between its columns; nothing where each line is a JSON object."""


@dataclasses.dataclass(frozen=True)
class Task:
    """The files of a downstream task, and which of their columns hold what.

    The format is told by the suffix: .tsv, .csv or .jsonl, each also with .gz. Cells of a tsv are taken as they stand,
    as in GLUE's files; those of a csv may be quoted.
    """

    train: str = ""
    """File of the rows to train on."""
    validation: str = ""
    """File of the rows to evaluate on."""
    text: str = "text"
    """Column of the sentence, or of the first of a pair."""
    text_pair: str = ""
    """Column of the second sentence; empty where there is one sentence only."""
    label: str = "label"
    """Column of the label, or of the number to predict."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a tsv or csv whose first row is data already; empty reads them from the first row."""
    sequence_length: int = 128
    """Tokens in a row, special ones included; of a longer pair the longer sentence is cut first."""
    epochs: float = 0.0
    """Passes over the train file, resolved into training.steps; 0 leaves training.steps as it is."""
    warmup: float = 0.0
    """Share of the steps that warms up, resolved into optimizer.warmup_steps; 0 leaves that as it is."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a file.

    texts: (sentence,) or (first, second). labels: as they are written. lines: where each row ends in the file, from 1.
    """

    path: str
    texts: list[tuple[str, ...]]
    labels: list[str]
    lines: list[int]

    def where(self, row: int) -> str:
        """`line 7 of dev.tsv`, for messages."""
        return f"line {self.lines[row]} of {self.path}"


def read(task: Task, split: str) -> Examples:
    """The rows of the task's file `split`, "train" or "validation".

    Raises:
        UserError: no such file, an unknown format, damaged text, no rows, a missing column, a row of another width, or
            an empty cell.
    """
    path = getattr(task, split)
    if not path:
        raise UserError(f"Expected a file of labelled rows in --data.{split}, found none; name a .tsv, .csv or .jsonl.")
    suffix = Path(path.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        raise UserError(f"Expected a .tsv, .csv or .jsonl file (or one of them with .gz), found {path}; convert it.")
    if suffix == ".jsonl" and task.columns:
        raise UserError(f"Expected no --data.columns, since every line of {path} names its own; leave the option out.")
    text = _decoded(storage.path(path))
    rows = _objects(text, path) if suffix == ".jsonl" else _cells(text, path, SUFFIXES[suffix], task.columns)
    wanted = {"text": task.text, "text_pair": task.text_pair, "label": task.label}
    examples = Examples(path, [], [], [])
    for line, row in rows:
        cells = {}
        for option, column in wanted.items():
            if not column and option == "text_pair":
                continue
            if column not in row:
                raise UserError(
                    f"Expected a column {column!r} in line {line} of {path}, found {', '.join(map(repr, row))}; set "
                    f"--data.{option}."
                )
            cells[option] = _cell(row[column], column, option, f"line {line} of {path}")
        examples.labels.append(cells.pop("label"))
        examples.texts.append(tuple(cells.values()))
        examples.lines.append(line)
    if not examples.texts:
        raise UserError(f"Expected labelled rows in {path}, found none; name another file in --data.{split}.")
    return examples


def _cell(value: Any, column: str, option: str, where: str) -> str:
    if option == "label" and isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise UserError(f"Expected text in {column!r} in {where}, found {json.dumps(value)}; mend that line.")
    if not value.strip():
        raise UserError(f"Expected text in {column!r} in {where}, found it empty; mend or remove that line.")
    return value.strip()


def _decoded(path: Path) -> str:
    """The file's text, unpacked if its name ends in .gz."""
    if not path.is_file():
        others = [str(other) for other in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(str(path), others) if others else "check the path."
        raise UserError(f"Expected a file of labelled rows, found no file {str(path)!r}; {hint}")
    contents = path.read_bytes()
    if path.suffix == ".gz":
        try:
            contents = gzip.decompress(contents)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"Expected a whole gzip file at {path}, found a damaged one ({error}).") from None
    try:
        return contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"Expected UTF-8 text, found the byte 0x{contents[error.start]:02x} in line {line} of {path}; convert the "
            f"file, for instance with iconv."
        ) from None


def _cells(text: str, path: str, delimiter: str, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, column -> cell) of every row that is not blank."""
    csv.field_size_limit(2**31 - 1)  # whole documents may stand in a cell
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    names = list(columns)
    try:
        for row in reader:
            if not row:
                continue
            if not names:
                names = row
                continue
            if len(row) != len(names):
                raise UserError(
                    f"Expected {len(names)} columns ({', '.join(names)}) in line {reader.line_num} of {path}, found "
                    f"{len(row)}; mend that line or name the columns with --data.columns."
                )
            yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UserError(f"Line {reader.line_num} of {path} cannot be read ({error}); mend that line.") from None


def _objects(text: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of every line that is not blank."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"Line {number} of {path} is not JSON ({error.msg}); mend that line.") from None
        if not isinstance(row, dict):
            raise UserError(f"Expected a JSON object in line {number} of {path}, found {line.strip()[:40]}.")
        yield number, row
