"""Parquet: a column of text, and files that cannot be read."""

import pyarrow
import pyarrow.parquet
import pytest

from plmjax.data import formats
from plmjax.errors import UserError
from tests.data.formats.samples import read


def test_parquet(tmp_path):
    rows = {"text": ["One.\nTwo.", None, "Three."] + ["More."] * 300, "body": ["A."] * 303, "id": list(range(303))}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows), path, row_group_size=100)
    counts = []
    found = list(formats.documents([path], "auto", counts.append))
    assert [formats.prose(d) for d in found if d.text][:2] == [["One.", "Two."], ["Three."]]
    assert len(found) == 303 and sum(counts) == path.stat().st_size
    assert found[2].place == f"{path} row 3"
    assert {d.text for d in formats.documents([path], "parquet", text_key="body")} == {"A."}
    for key in ("id", "absent"):
        with pytest.raises(UserError, match=f"column of text named '{key}' .* found the columns text, body, id; name"):
            list(formats.documents([path], text_key=key))


def test_text_of_a_parquet_file_that_is_no_utf8_is_one_sentence(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["One of them."]}), path, compression="none", use_dictionary=False
    )
    path.write_bytes(path.read_bytes().replace(b"One of", b"One\xff\xfe\xff"))
    with pytest.raises(UserError, match=r"a whole Parquet file in .*a\.parquet, found one that cannot be read"):
        read([path])


def test_rows_are_numbered_through_groups_of_any_size(tmp_path):
    rows = [f"Number {number}." for number in range(620)]
    path, counts = tmp_path / "a.parquet", []
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path, row_group_size=100)
    found = list(formats.documents([path], "auto", counts.append))
    assert [document.place for document in found] == [f"{path} row {number}" for number in range(1, 621)]
    assert [document.text for document in found] == rows
    assert sum(counts) == path.stat().st_size and max(counts) <= -(-path.stat().st_size * 256 // 620)
