"""Documents of tables with typed columns, as Parquet and Arrow have them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.data.formats import records
from plmjax.data.formats.cutting import whole
from plmjax.data.formats.document import Document
from plmjax.errors import UserError, listed, quoted


def check(path: Path, schema: Any, key: str, parts: records.Parts | None) -> None:
    """Raise UserError unless the columns of text exist in a schema of pyarrow and hold text."""
    import pyarrow

    strings = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
    for name in parts.streams.values() if parts else (key,):
        if name not in schema.names or schema.field(name).type not in strings:
            option = "--streams" if parts else "--text_key"
            raise UserError(
                f"Expected a column of text named {quoted(name)} in {path}, found the columns "
                f"{listed(schema.names)}; name the one that is meant in {option}."
            )


def documents(path: Path, batch: Any, done: int, key: str, parts: records.Parts | None) -> Iterator[Document]:
    """Yield one document per row of a batch: the text of the column `key`, or with `parts` the row as a record.

    A missing value is an empty text.

    done: number of rows before the batch.
    """
    for number, row in enumerate(batch.to_pylist(), start=done + 1):
        if parts:
            row |= {name: row[name] or "" for name in parts.streams.values()}
            yield Document("jsonl", f"{path} row {number}", json.dumps(row, ensure_ascii=False))
            continue
        for _, part in whole(str(path), [row[key] or ""]):
            yield Document("text", f"{path} row {number}", part)
