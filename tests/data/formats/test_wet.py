"""WET: the text of pages in WARC records, also with a member of gzip for each record, and files that are damaged."""

import gzip
from pathlib import Path

import pytest
from tensorflow_datasets.text import c4_utils

from plmjax.data import formats, text_files
from plmjax.data.formats import cutting
from plmjax.errors import UserError

PAGES = ["A page.\nIts second line.", "Eine Seite, natürlich.\n\nNoch eine Zeile."]


def record(kind: str, text: str, length: int | None = None) -> bytes:
    content = text.encode()
    fields = f"WARC-Type: {kind}\r\nWARC-Target-URI: http://a.example/\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
    fields += f"Content-Type: text/plain\r\nContent-Length: {len(content) if length is None else length}\r\n"
    return f"WARC/1.0\r\n{fields}\r\n".encode() + content + b"\r\n\r\n"


RECORDS = [record("warcinfo", "Software-Info: ia-web-commons\r\n"), *(record("conversion", page) for page in PAGES)]


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (record("response", "HTTP/1.1 200 OK"), "records of the type conversion, found the type 'response'; extract"),
        (record("conversion", "A page.", 100), "Expected 100 bytes in .* record 1, found the end of the file"),
        (record("conversion", "A page.", 3), "header of a WARC record at .* record 2, found"),
        (record("conversion", "A page.", -1), "Expected a Content-Length in the header .*, found '-1'"),
        (record("conversion", "A page.", 1 << 40), "Expected records of at most"),
        (RECORDS[1].replace(b"page", b"p\xffge"), "UTF-8 text in .* record 1, found byte 0xff at offset 3"),
        (b"WARC/1.0\r\nWARC-Type: conversion\r\n", "header of a WARC record at .* record 1, found none"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.warc.wet"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(formats.documents([path], "wet"))


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
    for longest in (7, 6):
        monkeypatch.setattr(cutting, "LONGEST_RECORD", longest)
        if longest == 7:
            (found,) = formats.documents([path], "wet")
            assert formats.prose(found) == ["A page."]
        else:
            with pytest.raises(UserError, match="records of at most 6 bytes, found 7 in"):
                list(formats.documents([path], "wet"))
