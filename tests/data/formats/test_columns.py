"""Columns of Parquet and Arrow, and keys of JSON: text and numbers of every type."""

import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from plmjax.data import formats
from plmjax.data.formats import records
from tests.data.formats.samples import write_table
from tests.data.mistakes import refused

TEXTS = ["One.", None, "Zwei Füchse."]
BYTES = [text and text.encode() for text in TEXTS]
COLUMNS = {
    "string": pyarrow.array(TEXTS),
    "large_string": pyarrow.array(TEXTS, pyarrow.large_string()),
    "string_view": pyarrow.array(TEXTS, pyarrow.string_view()),
    "binary": pyarrow.array(BYTES, pyarrow.binary()),
    "dictionary": pyarrow.array(TEXTS).dictionary_encode(),
    "dictionary of bytes": pyarrow.array(BYTES).dictionary_encode(),
    "json": pyarrow.array(TEXTS, pyarrow.json_()),
    "missing": pyarrow.nulls(3),
    "runs": pyarrow.RunEndEncodedArray.from_arrays([1, 2, 3], TEXTS),
}
SUFFIXES = [".parquet", ".arrow", ".feather"]


def texts(path: Path, **options: Any) -> list[str]:
    return [document.text for document in formats.documents([path], **options)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_text_and_numbers_of_every_type_are_read(suffix: str, tmp_path: Path) -> None:
    for kind, column in COLUMNS.items():
        if kind != "runs" or suffix != ".parquet":  # which has no such columns
            path = write_table(tmp_path / f"a{suffix}", pyarrow.table({"id": [1, 2, 3], "text": column}))
            assert texts(path) == (["", "", ""] if kind == "missing" else ["One.", "", "Zwei Füchse."]), kind
    table = pyarrow.table({"text": ["."], "d": [decimal.Decimal("1.50")], "f": pyarrow.array([1.5], pyarrow.float32())})
    path, parts = write_table(tmp_path / f"b{suffix}", table), records.Parts({"text": "text"}, ("d", "f"))
    assert [formats.fields_of(one, parts) for one in formats.documents([path], parts=parts)] == [[1.5, 1.5]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_are_numbered_and_counted_through_groups_of_any_size(suffix: str, tmp_path: Path) -> None:
    rows = {"text": ["One.\nTwo.", None, *(f"Number {n}." for n in range(618))], "body": ["A."] * 620}
    path, counts = write_table(tmp_path / f"a{suffix}", pyarrow.table(rows), 100 if suffix == ".parquet" else 500), []
    found = list(formats.documents([path], format="auto", progress=counts.append))
    assert formats.prose(found[0]) == ["One.", "Two."] and [d.text for d in found[1:]] == ["", *rows["text"][2:]]
    assert [document.place for document in found] == [f"{path} row {number}" for number in range(1, 621)]
    size = path.stat().st_size
    if suffix == ".parquet":
        assert sum(counts) == size and max(counts) <= -(-size * 256 // 620)
    else:  # of each batch; a file of Arrow ends with its index
        assert len(counts) == 2 and all(counts) and 0.9 * size < sum(counts) <= size
    assert set(texts(path, format="parquet" if suffix == ".parquet" else "arrow", text_key="body")) == {"A."}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_key_may_name_a_field_of_a_column(suffix: str, tmp_path: Path) -> None:
    """As in translations of the `datasets` library. A column whose name has a dot is taken first."""
    rows: list[dict[str, Any]] = [
        {"translation": {"en": "One.", "de": "Eins."}, "a.b": "Dotted.", "score": {"x": 2}},
        {"translation": {"en": "Two.", "de": None}, "a.b": None, "score": {"x": 3.5}},
    ]
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_table(path, pyarrow.Table.from_pylist(rows))

    def of(key: str) -> list[list[str]]:
        return [formats.prose(document) for document in formats.documents([path], text_key=key)]

    assert of("translation.en") == [["One."], ["Two."]] and of("a.b") == [["Dotted."], []]
    parts = records.Parts({"source": "translation.en", "target": "translation.de"}, ("score.x",))
    found = list(formats.documents([path], parts=parts))
    assert [formats.streams_of(document, parts)["target"] for document in found] == [["Eins."], []]
    assert [formats.fields_of(document, parts) for document in found] == [[2.0], [3.5]]
    refused(lambda: of("translation.fr"), "'translation.fr'")
