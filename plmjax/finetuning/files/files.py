"""Files of labelled text: tables, CoNLL columns and JSON, plain or gzipped; every row comes with its line."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from plmjax import json_text, storage
from plmjax.errors import UserError, beginning, listed, nearest, quoted

TABLES = {".tsv": "\t", ".csv": ",", ".jsonl": ""}
"""Suffix of a file of rows (before .gz) -> what stands between its cells; nothing where each line is a JSON object."""

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""Columns of a .conllu file (universaldependencies.org/format)."""
CONLL = ("form", "tag")
"""Columns of a .conll file that names none."""


def suffix(path: str) -> str:
    """`.tsv` of `train.tsv.gz`."""
    return Path(path.removesuffix(".gz")).suffix


def table(
    path: str, columns: Sequence[str] = (), damaged: bool = False, spare: str = ""
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line where it ends, column -> cell) of every row of a .tsv (cells as they stand), .csv (quoted) or .jsonl file.

    columns: names where the first row of a tsv or csv is data already. damaged: leave out rows that are too short.
    spare: one of `columns` that the file may lack, the label of a file to predict.

    Raises:
        UserError: another format, damaged text, or a row of another width than the first.
    """
    kind = suffix(path)
    if kind not in TABLES:
        raise UserError(f"Expected a .tsv, .csv or .jsonl file (or one of them with .gz), found {path}; convert it.")
    if kind == ".jsonl" and columns:
        raise UserError(
            f"Expected no --data.columns for {path}, found some; leave them out, since every line names its own."
        )
    if kind == ".jsonl":
        return _objects(path)
    return _cells(path, TABLES[kind], tuple(columns), damaged, spare)


def blocks(path: str, columns: Sequence[str] = (), spare: str = "") -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """The sentences of a .conll or .conllu file, each a list of (line, column -> cell), one a word.

    Cells of a .conll file are separated by tabs, or by spaces where there are none, and sentences by blank lines;
    -DOCSTART- lines are left out. Of a .conllu file comments, multiword tokens and empty nodes are left
    out. A .jsonl file has one sentence per line, each column a list of equal length. spare: as of `table`.

    Raises:
        UserError: another format, damaged text, or a row of another width.
    """
    kind = suffix(path)
    if kind == ".jsonl":
        yield from _listed(table(path, columns), path)
        return
    if kind not in (".conll", ".conllu"):
        raise UserError(f"Expected a .conll, .conllu or .jsonl file (or one with .gz), found {path}; convert it.")
    names = tuple(columns) or (CONLLU if kind == ".conllu" else CONLL)
    spare = "" if kind == ".conllu" else spare
    block: list[tuple[int, dict[str, str]]] = []
    for number, line in enumerate(lines(path), start=1):
        line = line.rstrip("\r\n")
        if not line.strip() or line.startswith("-DOCSTART-"):
            if block:
                yield block
            block = []
            continue
        if kind == ".conllu" and line.startswith("#"):
            continue
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        names = _present(names, len(cells), spare)
        spare = ""
        if len(cells) != len(names):
            raise _width(number, path, names, len(cells))
        if kind == ".conllu" and not re.fullmatch(r"[0-9]+", cells[0]):
            if not re.fullmatch(r"[0-9]+[-.][0-9]+", cells[0]):
                raise UserError(
                    f"Expected the number of a word, such as 3, 3-4 or 3.1, in line {number} of {path}, found "
                    f"{quoted(cells[0])}; fix that line."
                )
            continue
        block.append((number, dict(zip(names, cells, strict=True))))
    if block:
        yield block


def tree(path: str) -> tuple[Any, str]:
    """(what a .json file holds, its text, to find lines in)."""
    if suffix(path) != ".json":
        raise UserError(f"Expected a .json file of questions as SQuAD's (or one with .gz), found {path}; convert it.")
    text = decoded(path)
    try:
        return json_text.parse(text), text
    except json.JSONDecodeError as error:
        raise UserError(f"Expected JSON in line {error.lineno} of {path}, found {error.msg}; fix it.") from None
    except ValueError as error:
        raise UserError(f"Expected JSON in {path}, found: {json_text.reason(error)}; fix it.") from None


def decoded(path: str) -> str:
    """The whole text of a file, as `lines` reads it."""
    return "".join(lines(path))


def lines(path: str) -> Iterator[str]:
    """The lines of a file, each with its end, as they are read; unpacked if its name ends in .gz.

    Raises:
        UserError: no such file, a damaged one, or text that is not UTF-8, naming the line.
    """
    place = storage.path(path)
    if not place.is_file():
        others = [str(other) for other in place.parent.iterdir()] if place.parent.is_dir() else []
        hint = nearest(str(place), others) if others else "check the path."
        raise UserError(f"Expected a file of examples, found no file {quoted(str(place), 300)}; {hint}")
    with place.open("rb") as file:
        for number, line in enumerate(_unpacked(file, place) if place.suffix == ".gz" else file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"Expected UTF-8 text, found the byte 0x{line[error.start]:02x} in line {number} of {place}; "
                    f"convert the file, for instance with iconv."
                ) from None


def _unpacked(file: BinaryIO, place: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file) as contents:
            yield from contents
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"Expected a whole gzip file at {place}, found a damaged one ({json_text.reason(error)}); copy it again."
        ) from None


def cell(row: dict[str, Any], column: str, option: str, where: str) -> Any:
    """row[column], or a UserError that names the option to set."""
    if column not in row:
        found = listed(map(repr, row))
        raise UserError(f"Expected a column {quoted(column)} in {where}, found {found}; set --data.{option}.")
    return row[column]


def text(value: Any, column: str, where: str) -> str:
    """A cell that must hold text, without the space around it."""
    if not isinstance(value, str):
        raise UserError(
            f"Expected text in {quoted(column)} in {where}, found {beginning(json.dumps(value))}; fix that line."
        )
    if not value.strip():
        raise UserError(f"Expected text in {quoted(column)} in {where}, found it empty; fix or remove that line.")
    return value.strip()


def label(value: Any, column: str, where: str) -> str:
    """A cell that holds a label: text, or the number or truth value of a JSON object as JSON writes it."""
    return json.dumps(value) if isinstance(value, bool | int | float) else text(value, column, where)


def _cells(
    path: str, delimiter: str, names: tuple[str, ...], damaged: bool, spare: str
) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # whole documents may stand in a cell
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    spare = spare if names else ""
    # A carriage return alone ends a row as well.
    ended = (part for line in lines(path) for part in re.split("(?<=\r)(?!\n)", line) if part)
    reader = csv.reader(ended, delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for row in reader:
            if not row:
                continue
            if not names:
                names = tuple(row)
                continue
            names = _present(names, len(row), spare)
            spare = ""
            if damaged and len(row) < len(names):
                continue
            if len(row) != len(names):
                raise _width(reader.line_num, path, names, len(row))
            yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UserError(
            f"Expected a row in line {reader.line_num} of {path}, found an error ({json_text.reason(error)}); fix that "
            f"line."
        ) from None


def _objects(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json_text.parse(line)
        except ValueError as error:
            found = getattr(error, "msg", json_text.reason(error))
            raise UserError(f"Expected JSON in line {number} of {path}, found {found}; fix that line.") from None
        if not isinstance(row, dict):
            raise UserError(
                f"Expected a JSON object in line {number} of {path}, found {quoted(line.strip())}; fix that line."
            )
        yield number, row


def _listed(rows: Iterator[tuple[int, dict[str, Any]]], path: str) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    for number, row in rows:
        lists = {name: value for name, value in row.items() if isinstance(value, list)}
        lengths = {len(value) for value in lists.values()}
        if len(lengths) != 1:
            found = listed(f"{name} of {len(value)}" for name, value in lists.items())
            raise UserError(f"Expected lists of equal length in line {number} of {path}, found {found}; fix it.")
        yield [(number, dict(zip(lists, values, strict=True))) for values in zip(*lists.values(), strict=True)]


def _present(names: tuple[str, ...], cells: int, spare: str) -> tuple[str, ...]:
    """The columns that a file's first row of so many cells has: all of them, or all but the spare one."""
    rest = tuple(name for name in names if name != spare)
    return rest if cells == len(rest) < len(names) else names


def _width(line: int, path: str, names: Sequence[str], found: int) -> UserError:
    return UserError(
        f"Expected {len(names)} columns ({listed(names)}) in line {line} of {path}, found {found}; fix that "
        f"line or name the columns with --data.columns."
    )
