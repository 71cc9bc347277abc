"""Documents from tables with typed columns: Parquet and Arrow."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.data.formats import records
from plmjax.data.formats.cutting import split_long
from plmjax.data.formats.document import Document
from plmjax.errors import UserError, listed, quoted


def names(schema: Any, key: str, parts: records.Parts | None) -> list[str]:
    """Return the columns that contain the keys. A key may name a field of a column, as `translation.en`."""
    keys = parts.keys if parts else (key,)
    return [name for name in schema.names if name in keys or any(key.startswith(f"{name}.") for key in keys)]


def check(path: Path, schema: Any, key: str, parts: records.Parts | None) -> None:
    """Raise UserError unless the text columns exist in a pyarrow schema and have text."""
    for name in parts.streams.values() if parts else (key,):
        kind = _kind(schema, name)
        if kind is None or not _is_text(kind):
            option = "--streams" if parts else "--text_key"
            where = f", where it holds {kind}" if kind else ""
            raise UserError(
                f"Expected a column of text named {quoted(name)} in {path}{where}, found the columns "
                f"{listed(schema.names)}; name the one that is meant in {option}."
            )


def documents(path: Path, batch: Any, done: int, *, key: str, parts: records.Parts | None) -> Iterator[Document]:
    """Yield one document per row of a batch: the text of the column `key`, or with `parts` the row as a record.

    A missing value is an empty text.

    done: number of rows before the batch.

    Raises:
        UserError: bytes are not UTF-8.
    """
    for number, row in enumerate(batch.to_pylist(), start=done + 1):
        place = f"{path} row {number}"
        if parts:
            record = {name: _value(records.value(row, name)) for name in parts.fields}
            record |= {name: _text(records.value(row, name), place) for name in parts.streams.values()}
            yield Document("jsonl", place, json.dumps(record, ensure_ascii=False, default=str))
            continue
        for _, part in split_long(str(path), [_text(records.value(row, key), place)]):
            yield Document("text", place, part)


def _kind(schema: Any, key: str) -> Any:
    """Return the type of a column, or of a field of a column. Return None if the table has no such column."""
    import pyarrow

    name, *fields = [key] if key in schema.names else key.split(".")
    if schema.get_field_index(name) < 0:  # also if two columns have this name
        return None
    kind = schema.field(name).type
    for field in fields:
        if not pyarrow.types.is_struct(kind) or kind.get_field_index(field) < 0:
            return None
        kind = kind.field(field).type
    return kind


def _is_text(kind: Any) -> bool:
    """Return whether a type is text: strings, bytes, a dictionary of either, or only missing values."""
    import pyarrow

    while True:
        if isinstance(kind, pyarrow.DictionaryType | pyarrow.RunEndEncodedType):
            kind = kind.value_type
        elif isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        else:
            break
    texts = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
    return kind in (*texts, pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view(), pyarrow.null())


def _text(found: Any, place: str) -> str:
    try:
        return found.decode("utf-8") if isinstance(found, bytes) else found or ""
    except UnicodeDecodeError as error:
        raise UserError(
            f"Expected UTF-8 text in {place}, found byte 0x{found[error.start]:02x} at offset {error.start}, which is "
            "not UTF-8; convert the column."
        ) from None


def _value(found: Any) -> Any:
    """Return a value as it is; infinity and NaN, which JSON lacks, become text, so that a message can quote them."""
    return str(found) if isinstance(found, float) and not math.isfinite(found) else found
