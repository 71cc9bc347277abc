"""The format `tsv`: a table with tabs, one record per line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from plmjax.data import text_files
from plmjax.data.formats import cutting
from plmjax.errors import UserError, listed, quoted


def split(path: Path, blocks: Iterator[bytes], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (place, record as JSON with only the columns `keys`) of every line.

    The first line has the names of the columns. If all keys are numbers, they are column numbers from 1, and every line
    is a record.

    Raises:
        UserError: a column does not exist, or a line has another number of columns than the first.
    """
    names: list[str] | None = None
    for place, line in cutting.lines(path, text_files.text(path, blocks)):
        cells = line.split("\t")
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
