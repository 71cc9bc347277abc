"""Documents that are records with named parts: a JSON object, a line of a table, a row of Parquet, an example of TFDS.

A record may hold several texts of one document, each a stream of the dataset (`source` and `target`), and numbers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plmjax import json_text
from plmjax.decimals import decimal
from plmjax.errors import UserError, listed, quoted

FORMATS = ("jsonl", "tsv", "parquet")
"""Formats of files whose documents are records, beside tfds:NAME."""


class Parts(NamedTuple):
    """What is read of a record. streams: name of a stream -> key of its text. fields: keys of numbers."""

    streams: Mapping[str, str]
    fields: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that a record must have."""
        return (*self.streams.values(), *self.fields)


def streams(options: Sequence[str]) -> dict[str, str]:
    """NAME=KEY of the command line -> the key that each stream is read from; NAME alone is both.

    Raises:
      UserError: a name without a key, or one that is given twice.
    """
    found: dict[str, str] = {}
    for option in options:
        name, _, key = option.partition("=")
        if not name or name in found or option.endswith("="):
            raise UserError(
                f"Expected --streams of the form NAME=KEY, every name once, found {quoted(option)}; write for example "
                "--streams source=en target=de."
            )
        found[name] = key or name
    return found


def parse(text: str, place: str) -> dict[str, Any]:
    """A record that is written as a JSON object.

    Raises:
      UserError: it is none.
    """
    try:
        record = json_text.parse(text)
    except ValueError as error:
        found = json_text.reason(error)
        raise UserError(f"Expected a JSON object in {place}, found text that is none ({found}).") from None
    if not isinstance(record, dict):
        raise UserError(f"Expected a JSON object in {place}, found {type(record).__name__}.")
    return record


def text(record: dict[str, Any], key: str, place: str, option: str) -> str:
    """The text under a key; `option` names what the key was given by.

    Raises:
      UserError: there is no text.
    """
    if not isinstance(record.get(key), str):
        raise UserError(
            f"Expected a string {quoted(key)} in the JSON object of {place}, found the keys {listed(record)}; name the "
            f"one that holds the text in {option}."
        )
    return record[key]


def number(record: dict[str, Any], key: str, place: str) -> float:
    """The number under a key, which may be written as a string.

    Raises:
      UserError: there is none.
    """
    try:
        return decimal(record[key])
    except (KeyError, ValueError):
        found = quoted(str(record[key])) if key in record else f"the keys {listed(record)}"
        raise UserError(
            f"Expected a number {quoted(key)} in {place}, found {found}; change plmjax prepare --fields."
        ) from None


def table(path: Path, lines: Iterator[tuple[str, str]], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(place, record as JSON) of the lines of a table with tabs, of which the columns `keys` are taken.

    The first line names the columns; where the keys are numbers, they count columns from 1 and every line is a record.

    Raises:
      UserError: a column that is not there, or a line with other columns than the first.
    """
    names: list[str] | None = None
    for place, line in lines:
        cells = line.rstrip("\r").split("\t")
        if names is None:
            by_number = all(key.isdecimal() for key in keys)
            names = [str(column + 1) for column in range(len(cells))] if by_number else cells
            if absent := [key for key in keys if key not in names]:
                raise UserError(
                    f"Expected the column {quoted(absent[0])} in {path}, found {listed(names)}; name columns as its "
                    "first line does, or by their numbers where it has no names."
                )
            if not by_number:
                continue
        if len(cells) != len(names):
            raise UserError(
                f"Expected {len(names)} columns between tabs in {place}, found {len(cells)}; fix the line or remove it."
            )
        record = dict(zip(names, cells, strict=True))
        yield place, json.dumps({key: record[key] for key in keys}, ensure_ascii=False)
