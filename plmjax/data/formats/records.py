"""Documents that are records with named parts: JSON objects, rows of TSV, Parquet or Arrow tables, TFDS examples.

A record may hold several texts of one document, each a stream of the dataset (`source` and `target`), and numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plmjax.errors import UserError, listed, quoted
from plmjax.files import json_text
from plmjax.files.decimals import decimal

FORMATS = ("jsonl", "tsv", "parquet", "arrow")
"""File formats whose documents are records, in addition to tfds:NAME."""
_KINDS = {dict: "an object", list: "a list", bool: "a truth value", int: "a number", float: "a number"}


class Parts(NamedTuple):
    """The parts of a record to read. streams: name of a stream -> key of its text. fields: keys of numbers."""

    streams: Mapping[str, str]
    fields: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Return all keys that a record must have."""
        return (*self.streams.values(), *self.fields)


def streams(options: Sequence[str]) -> dict[str, str]:
    """Return a dict from stream to the key of its text, for options NAME=KEY; NAME alone means NAME=NAME.

    Raises:
        UserError: a name has no key, or occurs twice.
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
    """Return a record that is written as a JSON object.

    Raises:
        UserError: the text is not a JSON object.
    """
    try:
        record = json_text.parse(text)
    except ValueError as error:
        found = json_text.reason(error)
        raise UserError(f"Expected a JSON object in {place}, found text that is none ({found}).") from None
    if not isinstance(record, dict):
        raise UserError(f"Expected a JSON object in {place}, found {type(record).__name__}.")
    return record


def value(record: Mapping[str, Any], key: str) -> Any:
    """Return the value under a key, or under nested keys separated by dots, as `translation.en`; None for null.

    Raises:
        KeyError: the record has no such key.
    """
    if key in record:
        return record[key]
    name, _, rest = key.partition(".")
    within = record[name]
    if not isinstance(within, Mapping | None):
        raise KeyError(key)
    return None if within is None else value(within, rest)


def text(record: dict[str, Any], key: str, place: str, option: str) -> str:
    """Return the text under a key; `option` is the option that names the key. A missing value (null) is an empty text.

    Raises:
        UserError: the key does not exist, or its value is not text.
    """
    where = ""
    try:
        found = value(record, key)
        if found is None or isinstance(found, str):
            return found or ""
        where = f", where it is {_KINDS[type(found)]}"
    except KeyError:
        pass
    others = {name: found for name, found in record.items() if name != key or isinstance(found, Mapping)}
    advice = f"name the one that holds the text in {option}" if _has_string(others) else "write the text as one string"
    raise UserError(
        f"Expected a string {quoted(key)} in the JSON object of {place}{where}, found the keys {listed(record)}; "
        f"{advice}."
    )


def _has_string(found: Any) -> bool:
    return isinstance(found, str) or (isinstance(found, Mapping) and any(map(_has_string, found.values())))


def number(record: dict[str, Any], key: str, place: str) -> float:
    """Return the number under a key, which may be written as a string.

    Raises:
        UserError: the key does not exist, or its value is not a number.
    """
    there = f"the keys {listed(record)}"
    try:
        found = value(record, key)
        there = "null" if found is None else quoted(str(found))
        return decimal(found)
    except (KeyError, ValueError):
        raise UserError(
            f"Expected a number {quoted(key)} in {place}, found {there}; change plmjax prepare --fields."
        ) from None
