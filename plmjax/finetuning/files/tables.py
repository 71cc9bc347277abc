"""Tables of examples: .tsv, .csv and .jsonl files. Every row is returned with the number of its line."""

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any

from plmjax.errors import UserError, beginning, listed, quoted
from plmjax.files import json_text, storage
from plmjax.finetuning.files.text_files import lines, suffix

DELIMITERS = {".tsv": "\t", ".csv": ",", ".jsonl": ""}
"""Suffix of a file, before a suffix of compression -> delimiter of its cells; empty for one JSON object per line."""


def rows(
    path: str, columns: Sequence[str] = (), skip_bad_rows: bool = False, spare: str = ""
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the row's last line, column -> cell) of every row of a .tsv, .csv or .jsonl file.

    Cells of a .tsv file are read unchanged, those of a .csv file may be quoted.

    columns: names of the columns of a tsv or csv file without a header.
    skip_bad_rows: skip rows that are too short.
    spare: one of `columns` that the file may lack, such as the label in a file to predict.

    Raises:
        UserError: another format, damaged text, or a row of another width than the first.
    """
    kind = suffix(path)
    if kind not in DELIMITERS and storage.path(path).is_dir():
        raise UserError(f"Expected a .tsv, .csv or .jsonl file, found the folder {path}; name a file in it.")
    if kind not in DELIMITERS:
        raise UserError(
            f"Expected a .tsv, .csv or .jsonl file (or one of them with .gz), found {path}; write a "
            "table of it, whose header names its columns."
        )
    if kind == ".jsonl" and columns:
        raise UserError(
            f"Expected no --data.columns for {path}, found some; leave them out, since every line names its own."
        )
    if kind == ".jsonl":
        return _objects(path)
    return _cells(path, DELIMITERS[kind], tuple(columns), skip_bad_rows=skip_bad_rows, spare=spare)


def cell(row: dict[str, Any], column: str, option: str, where: str) -> Any:
    """Return row[column], or raise a UserError that names the option to set."""
    if column not in row:
        raise absent(column, row, f"--data.{option}", where)
    return row[column]


def absent(column: str, row: dict[str, Any], option: str, where: str) -> UserError:
    """Return the error for a row without a column. where: "line N of PATH"; for a table the error names its header."""
    path = where.partition(" of ")[2] or where
    kind, found = suffix(path), listed(map(repr, row))
    if kind == ".jsonl":
        return UserError(f"Expected a key {quoted(column)} in {where}, found {found}; set {option}.")
    other = {".tsv": (",", ".csv", "tabs"), ".csv": ("\t", ".tsv", "commas")}.get(kind)
    if other and len(row) == 1 and other[0] in next(iter(row)):
        return UserError(
            f"Expected columns divided by {other[2]} in {path}, found the one column {found}; rename it to {other[1]}."
        )
    if other and len(row) == 1 and (used := next((one for one in ";|,\t" if one in next(iter(row))), None)):
        return UserError(
            f"Expected columns divided by {other[2]} in {path}, found the one column {found}, with {used!r} in its "
            f"name; divide its columns by {other[2]}."
        )
    place, advice = f"the header of {path}" if other else where, ""
    if other and any(" " in name.strip() for name in row):
        advice = ", or name the columns with --data.columns if the first line is no header"
    return UserError(f"Expected a column {quoted(column)} in {place}, found {found}; set {option}{advice}.")


def text(value: Any, column: str, where: str) -> str:
    """Return a cell that must hold text, stripped of white space."""
    if not isinstance(value, str):
        raise UserError(
            f"Expected text in {quoted(column)} in {where}, found {beginning(json.dumps(value))}; fix that line."
        )
    if not value.strip():
        raise UserError(f"Expected text in {quoted(column)} in {where}, found it empty; fix or remove that line.")
    return value.strip()


def label(value: Any, column: str, where: str) -> str:
    """Return a cell that holds a label: text, or a number or boolean of a JSON object, spelled as in JSON."""
    return json.dumps(value) if isinstance(value, bool | int | float) else text(value, column, where)


def present_columns(names: tuple[str, ...], cells: int, spare: str) -> tuple[str, ...]:
    """Return the columns of a file whose first row has this number of cells: all, or all but the spare one."""
    rest = tuple(name for name in names if name != spare)
    return rest if cells == len(rest) < len(names) else names


def wrong_width(line: int, path: str, names: Sequence[str], found: int) -> UserError:
    """Return the error for a row whose number of cells differs from the number of columns."""
    return UserError(
        f"Expected {len(names)} columns ({listed(names)}) in line {line} of {path}, found {found}; fix that "
        f"line or name the columns with --data.columns."
    )


def _cells(
    path: str, delimiter: str, names: tuple[str, ...], *, skip_bad_rows: bool, spare: str
) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # A cell may hold a whole document.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    spare = spare if names else ""
    reader = csv.reader(lines(path), delimiter=delimiter, quoting=quoting, strict=True)
    try:
        for row in reader:
            if not row:
                continue
            if not names:
                names = tuple(row)
                continue
            names = present_columns(names, len(row), spare)
            spare = ""
            if skip_bad_rows and len(row) < len(names):
                continue
            if len(row) != len(names):
                raise wrong_width(reader.line_num, path, names, len(row))
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
