"""WET: the text of pages in WARC records, also with a member of gzip for each record, and files that are damaged."""

import gzip
from pathlib import Path

import pytest
from tensorflow_datasets.text import c4_utils

from plmjax.data import formats, text_files
from plmjax.data.formats import cutting
from tests.data.formats.samples import PAGES, RECORDS, record
from tests.data.mistakes import refused


@pytest.mark.parametrize("name", ["a.warc.wet", "a.warc.wet.gz"])
@pytest.mark.parametrize("format", ["auto", "wet"])
def test_wet(tmp_path: Path, name: str, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    path.write_bytes(b"".join(gzip.compress(one) if name.endswith(".gz") else one for one in RECORDS))
    for block in (1 << 20, 7):  # records and their marks lie across blocks
        monkeypatch.setattr(text_files, "BLOCK", block)
        if block == 7 and format == "auto":
            continue
        found = list(formats.documents([path], format))
        assert [formats.prose(d) for d in found] == [page.replace("\n\n", "\n").split("\n") for page in PAGES]
        assert [d.place for d in found] == [f"{path} record 2", f"{path} record 3"]


def test_pages_are_those_of_the_released_code_of_c4(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.wet.gz"
    path.write_bytes(b"".join(map(gzip.compress, RECORDS)))
    theirs = [page.text for page in c4_utils.split_wet_file(str(path), lambda counter, amount=1: None)]
    assert theirs[-2:] == ["\n".join(formats.prose(document)) for document in formats.documents([path])]


def test_records_about_a_page_are_left_out_and_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.wet"
    records = [
        record("metadata", "fetchTimeMs: 9"),
        record("conversion", "A page.\r\nIts end."),
        record("metadata", "x"),
    ]
    path.write_bytes(b"".join(records))
    (found,) = formats.documents([path], "wet")
    assert formats.prose(found) == ["A page.", "Its end."] and found.place == f"{path} record 2"


def test_the_longest_record_is_read_and_names_are_of_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.warc.wet"
    path.write_bytes(record("Conversion", "A page.").replace(b"WARC-Type", b"warc-type"))
    monkeypatch.setattr(cutting, "LONGEST_RECORD", 7)
    assert [formats.prose(found) for found in formats.documents([path], "wet")] == [["A page."]]
    monkeypatch.setattr(cutting, "LONGEST_RECORD", 6)
    refused(lambda: formats.documents([path], "wet"), "at most 6 bytes .. 7")
