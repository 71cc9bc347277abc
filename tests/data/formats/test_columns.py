"""Columns of text of every type that Parquet and Arrow have for it, and sentences about the others."""

import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from plmjax.data import formats
from plmjax.data.formats import records
from plmjax.errors import UserError

TEXTS = ["One.", None, "Zwei Füchse."]


def write(path: Path, table: pyarrow.Table) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        new = pyarrow.ipc.new_file if path.suffix == ".feather" else pyarrow.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


BYTES = [text and text.encode() for text in TEXTS]
COLUMNS = {
    "string": pyarrow.array(TEXTS),
    "large_string": pyarrow.array(TEXTS, pyarrow.large_string()),
    "string_view": pyarrow.array(TEXTS, pyarrow.string_view()),
    "binary": pyarrow.array(BYTES, pyarrow.binary()),
    "large_binary": pyarrow.array(BYTES, pyarrow.large_binary()),
    "dictionary": pyarrow.array(TEXTS).dictionary_encode(),
    "categorical": pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([1, None, 0], pyarrow.int8()), [TEXTS[2], TEXTS[0]]
    ),
    "dictionary of bytes": pyarrow.array(BYTES).dictionary_encode(),
    "json": pyarrow.array(TEXTS, pyarrow.json_()),
}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_text_of_every_type_is_read(kind: str, suffix: str, tmp_path: Path) -> None:
    table = pyarrow.table({"id": [1, 2, 3], "text": COLUMNS[kind]})
    path = write(tmp_path / f"a{suffix}", table)
    assert [document.text for document in formats.documents([path])] == ["One.", "", "Zwei Füchse."]


def test_runs_of_one_text_are_read(tmp_path: Path) -> None:
    column = pyarrow.RunEndEncodedArray.from_arrays([2, 3], ["One.", "Two."])
    path = write(tmp_path / "a.arrow", pyarrow.table({"text": column}))
    assert [document.text for document in formats.documents([path])] == ["One.", "One.", "Two."]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_column_of_missing_values_is_empty_texts(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", pyarrow.table({"text": pyarrow.nulls(2)}))
    assert [document.text for document in formats.documents([path])] == ["", ""]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_key_may_name_a_field_of_a_column(suffix: str, tmp_path: Path) -> None:
    """As in translations of the `datasets` library. A column whose name has a dot is taken first."""
    rows: list[dict[str, Any]] = [
        {"translation": {"en": "One.", "de": "Eins."}, "a.b": "Dotted.", "score": {"x": 2}},
        {"translation": {"en": "Two.", "de": None}, "a.b": None, "score": {"x": 3}},
    ]
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write(path, pyarrow.Table.from_pylist(rows))

    def of(key: str) -> list[list[str]]:
        return [formats.prose(document) for document in formats.documents([path], text_key=key)]

    assert of("translation.en") == [["One."], ["Two."]] and of("a.b") == [["Dotted."], []]
    parts = records.Parts({"source": "translation.en", "target": "translation.de"}, ("score.x",))
    found = list(formats.documents([path], parts=parts))
    assert [formats.streams_of(document, parts)["target"] for document in found] == [["Eins."], []]
    assert [formats.fields_of(document, parts) for document in found] == [[2.0], [3.0]]
    for key in ("translation.fr", "translation", "translation.en.x"):
        with pytest.raises(UserError, match=f"named '{key}'|string '{key}'"):
            of(key)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pyarrow.array([["One.", "Two."]]), "list<"),
        (pyarrow.array([{"a": "One."}]), "struct<"),
        (pyarrow.array([b"One."], pyarrow.binary(4)), "fixed_size_binary"),
        (pyarrow.array([1]), "int64"),
    ],
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_column_that_is_no_text_is_named_with_its_type(column, kind: str, suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", pyarrow.table({"text": column, "body": ["A."]}))
    with pytest.raises(
        UserError, match=f"named 'text' in {path}, where it holds {kind}.*, found the columns text, body;"
    ):
        list(formats.documents([path]))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_two_columns_of_one_name_are_refused(suffix: str, tmp_path: Path) -> None:
    columns = [pyarrow.array(["One."]), pyarrow.array(["Two."])]
    path = write(tmp_path / f"a{suffix}", pyarrow.table(columns, names=["text", "text"]))
    with pytest.raises(UserError, match=f"named 'text' in {path}, found the columns text, text;"):
        list(formats.documents([path]))


def test_bytes_that_are_no_text_are_named_by_their_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pyarrow.table({"text": [b"One.", b"caf\xe9"]}))
    with pytest.raises(UserError, match=rf"UTF-8 text in {path} row 2, found byte 0xe9 at offset 3"):
        list(formats.documents([path]))


def test_numbers_of_every_type_are_read_or_quoted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        pyarrow.table(
            {
                "text": ["One."],
                "decimal": pyarrow.array([decimal.Decimal("1.50")]),
                "float": pyarrow.array([1.5], pyarrow.float32()),
                "missing": pyarrow.nulls(1, pyarrow.int64()),
                "none": [float("nan")],
                "bytes": [b"x"],
            }
        ),
    )

    def number(name: str) -> float:
        parts = records.Parts({"text": "text"}, (name,))
        (document,) = formats.documents([path], parts=parts)
        return formats.fields_of(document, parts)[0]

    assert number("decimal") == number("float") == 1.5
    for name, found in (("missing", "null"), ("none", "'nan'"), ("bytes", "\"b'x'\"")):
        with pytest.raises(UserError, match=f"Expected a number '{name}' in .* row 1, found {found}; "):
            number(name)


@pytest.mark.parametrize(
    ("value", "kind"), [("[1]", "a list"), ("{}", "an object"), ("3", "a number"), ("true", "a truth value")]
)
def test_what_is_no_string_in_json_is_named(value: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": {value}, "id": 1}}\n')
    with pytest.raises(
        UserError, match=f"string 'text' in the JSON object of {path} line 1, where it is {kind}, found"
    ):
        [formats.prose(document) for document in formats.documents([path])]


def test_null_is_an_empty_text_in_json_as_in_a_table(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"text": null}\n{"text": "One."}\n')
    assert [formats.prose(document) for document in formats.documents([path])] == [[], ["One."]]
