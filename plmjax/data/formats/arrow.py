"""The format `arrow`: a column of an Arrow file, or its rows as records.

The library `datasets` stores datasets in files of this kind, in the stream format
(huggingface/datasets, src/datasets/arrow_writer.py). The file format (Feather) is read too.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plmjax.data.formats import columns, records
from plmjax.data.formats.document import Document
from plmjax.errors import UserError
from plmjax.files import json_text

ROWS = 256
"""Number of rows that are converted at once."""
_STREAM = b"\xff\xff\xff\xff"
"""Start of every message of a stream; no text in UTF-8 has these bytes."""
_FILE = b"ARROW1"


def recognise(path: Path) -> bool:
    """Return whether a file starts like an Arrow file."""
    with path.open("rb") as file:
        return file.read(len(_FILE)).startswith((_STREAM, _FILE))


def documents(path: Path, key: str, parts: records.Parts | None, progress: Callable[[int], None]) -> Iterator[Document]:
    """Yield one document per row: the text of the column `key`, or with `parts` the row as a record.

    A missing value is an empty text.

    Raises:
        UserError: a column does not exist or holds no text, or the file is not a complete Arrow file.
    """
    import pyarrow

    done = position = 0
    try:
        with path.open("rb") as raw:
            schema, batches = _open(raw)
            columns.check(path, schema, key, parts)
            names = columns.names(schema, key, parts)
            for batch in batches:
                batch.validate(full=True)  # in a damaged file, offsets may point outside the buffers
                for start in range(0, len(batch), ROWS):
                    rows = batch.select(names).slice(start, ROWS)
                    yield from columns.documents(path, rows, done + start, key=key, parts=parts)
                done += len(batch)
                progress(raw.tell() - position)
                position = raw.tell()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        raise UserError(
            f"Expected a whole Arrow file in {path}, found one that cannot be read "
            f"({json_text.reason(error)}); copy it again or check the format."
        ) from error


def _open(raw: Any) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a file and an iterator over its batches."""
    from pyarrow import ipc

    indexed = raw.read(len(_FILE)) == _FILE
    raw.seek(0)
    if not indexed:
        stream = ipc.open_stream(raw)
        return stream.schema, iter(stream)
    file = ipc.open_file(raw)
    return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
