"""The format `parquet`: a column of a Parquet file, or its rows as records."""

from collections.abc import Callable, Iterator
from pathlib import Path

from plmjax.data.formats import columns, records
from plmjax.data.formats.document import Document
from plmjax.errors import UserError
from plmjax.files import json_text, storage


def recognise(path: Path) -> bool:
    """Return whether a file starts like a Parquet file."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def documents(path: Path, key: str, parts: records.Parts | None, progress: Callable[[int], None]) -> Iterator[Document]:
    """Yield one document per row: the text of the column `key`, or with `parts` the row as a record.

    A missing value is an empty text.

    Raises:
        UserError: a column does not exist or holds no text, or the file is not a complete Parquet file.
    """
    import pyarrow
    from pyarrow import parquet

    done, size = 0, storage.size(path)
    try:
        with path.open("rb") as raw, parquet.ParquetFile(raw) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            columns.check(path, schema, key, parts)
            for batch in file.iter_batches(batch_size=256, columns=columns.names(schema, key, parts)):
                yield from columns.documents(path, batch, done, key=key, parts=parts)
                progress(size * (done + len(batch)) // rows - size * done // rows)
                done += len(batch)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"Expected a whole Parquet file in {path}, found one that cannot be read "
            f"({json_text.reason(error)}); copy it again or check the format."
        ) from error
