"""WET: the text of pages in WARC records, also with a member of gzip for each record, and files that are damaged."""

import gzip
import itertools
from pathlib import Path

import pytest
from tensorflow_datasets.text import c4_utils

from plmjax.data import formats, text_files
from plmjax.data.formats import cutting
from tests.data.formats.samples import PAGES, RECORDS, record
from tests.data.mistakes import refused


@pytest.mark.parametrize("format", ["auto", "wet"])
def test_pages_are_those_of_the_released_code_of_c4(tmp_path: Path, format: str, monkeypatch) -> None:
    """Also with records and their marks across the blocks of a file."""
    places = ["record 2", "record 3"]
    for name, packed in (("a.warc.wet", bytes), ("a.warc.wet.gz", gzip.compress)):
        (tmp_path / name).write_bytes(b"".join(map(packed, RECORDS)))
        for block in (1 << 20, *[7] * (format == "wet")):
            monkeypatch.setattr(text_files, "BLOCK", block)
            found = list(formats.documents([tmp_path / name], format=format))
            assert [formats.prose(one) for one in found] == [page.replace("\n\n", "\n").split("\n") for page in PAGES]
            assert [one.place for one in found] == [f"{tmp_path / name} {place}" for place in places]
    theirs = [page.text for page in c4_utils.split_wet_file(str(tmp_path / name), lambda counter, amount=1: None)]
    assert theirs[-2:] == ["\n".join(formats.prose(document)) for document in found]


def test_records_about_a_page_are_left_out_and_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.wet"
    kinds = {"metadata": "fetchTimeMs: 9", "conversion": "A page.\r\nIts end.", "warcinfo": "x"}
    path.write_bytes(b"".join(itertools.starmap(record, kinds.items())))
    (found,) = formats.documents([path], format="wet")
    assert formats.prose(found) == ["A page.", "Its end."] and found.place == f"{path} record 2"


def test_the_longest_record_is_read_and_names_are_of_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.warc.wet"
    path.write_bytes(record("Conversion", "A page.").replace(b"WARC-Type", b"warc-type"))
    monkeypatch.setattr(cutting, "LONGEST_RECORD", 7)
    assert [formats.prose(found) for found in formats.documents([path], format="wet")] == [["A page."]]
    monkeypatch.setattr(cutting, "LONGEST_RECORD", 6)
    refused(lambda: formats.documents([path], format="wet"), "at most 6 bytes .. 7")
