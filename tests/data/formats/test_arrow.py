"""Arrow: a column of text of streams and of files with an index, and files that cannot be read."""

from pathlib import Path

import pyarrow
import pyarrow.ipc
import pytest

from plmjax.data import formats
from plmjax.data.formats import records
from plmjax.errors import UserError

ROWS = {"text": ["One.\nTwo.", None, "Three."] + ["More."] * 600, "body": ["A."] * 603, "id": list(range(603))}


def write(path: Path, indexed: bool = False) -> Path:
    """A file in batches of 500 rows."""
    table = pyarrow.table(ROWS)
    new = pyarrow.ipc.new_file if indexed else pyarrow.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return path


@pytest.mark.parametrize("indexed", [False, True])
def test_arrow(tmp_path: Path, indexed: bool) -> None:
    path = write(tmp_path / "data-00000-of-00001.arrow", indexed)
    counts: list[int] = []
    found = list(formats.documents([path], "auto", counts.append))
    assert [formats.prose(d) for d in found if d.text][:2] == [["One.", "Two."], ["Three."]]
    assert len(found) == 603 and 0 < sum(counts) <= path.stat().st_size
    assert found[2].place == f"{path} row 3" and found[600].place == f"{path} row 601"
    assert {d.text for d in formats.documents([path], "arrow", text_key="body")} == {"A."}
    for key in ("id", "absent"):
        with pytest.raises(UserError, match=f"column of text named '{key}' .* found the columns text, body, id; name"):
            list(formats.documents([path], text_key=key))


def test_rows_are_records(tmp_path: Path) -> None:
    path, parts = write(tmp_path / "a.arrow"), records.Parts({"source": "text", "target": "body"}, ("id",))
    document = list(formats.documents([path], "auto", parts=parts))[2]
    assert formats.streams_of(document, parts) == {"source": ["Three."], "target": ["A."]}
    assert formats.fields_of(document, parts) == [2.0]


def test_a_file_that_is_cut_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UserError, match=r"a whole Arrow file in .*a\.arrow, found one that cannot be read"):
        list(formats.documents([path]))


def test_a_text_that_is_missing_in_a_record_is_empty(tmp_path: Path) -> None:
    path, parts = write(tmp_path / "a.arrow"), records.Parts({"source": "text", "target": "body"})
    document = list(formats.documents([path], "auto", parts=parts))[1]
    assert document.place == f"{path} row 2"
    assert formats.streams_of(document, parts) == {"source": [], "target": ["A."]}


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()])
def test_text_may_have_each_type_of_text(tmp_path: Path, kind: pyarrow.DataType) -> None:
    table = pyarrow.table({"text": pyarrow.array(["One.", "Two."], kind)})
    with pyarrow.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert [document.text for document in formats.documents([tmp_path / "a.arrow"])] == ["One.", "Two."]


def test_progress_is_the_bytes_of_each_batch(tmp_path: Path) -> None:
    path, counts = write(tmp_path / "a.arrow"), []
    list(formats.documents([path], "arrow", counts.append))
    assert len(counts) == 2 and all(counts) and path.stat().st_size - 100 < sum(counts) <= path.stat().st_size
