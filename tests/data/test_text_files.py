"""Text of UTF-8 blocks."""

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pytest

from plmjax.data import formats, text_files
from plmjax.errors import UserError
from plmjax.finetuning.files import text_files as example_files


def test_a_byte_order_mark_is_left_out_at_the_beginning_alone() -> None:
    blocks = [b"\xef\xbb\xbfa\xc3", b"\xa9", b"\xef\xbb\xbfb"]
    assert "".join(text_files.characters(Path("text"), iter(blocks))) == "aé\ufeffb"


def test_a_line_ends_as_on_any_system() -> None:
    assert text_files.divided("a\r\nb\rc\n\nd\n") == ["a", "b", "c", "", "d"]
    assert text_files.divided("a\n\n") == ["a", ""] and text_files.divided("") == [""]


@pytest.mark.parametrize("text", [b"one\ntwo\n\n\nthree\n \nfour", b"\n\none\n", b"one two", b"\n"])
def test_a_boundary_is_the_first_record_that_begins_at_a_byte_or_later(
    text: bytes, tmp_path: Path, monkeypatch
) -> None:
    """Blocks have four bytes, and a run of line ends may continue in the next block."""
    monkeypatch.setattr(text_files, "BLOCK", 4)
    monkeypatch.setattr(text_files, "_LOOK_BACK", 3)
    path, lines = tmp_path / "a.txt", re.compile(rb"\n[ \n]*")
    path.write_bytes(text)
    begins = [0, *(match.end() for match in lines.finditer(text)), len(text)]
    for at in range(-1, len(text) + 2):
        if not 0 < at < len(text) or text[at - 1] != ord(" "):  # within a run of them it has its last ones alone
            expected = min((begin for begin in begins if begin >= at), default=len(text))
            assert text_files.boundary(path, at, [lines]) == expected


def test_the_next_kind_of_boundary_is_taken_where_a_window_has_none_of_the_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 4)
    monkeypatch.setattr(text_files, "WINDOW", 8)
    monkeypatch.setattr(text_files, "LAST_WINDOW", 16)
    path, kinds = tmp_path / "a.txt", [re.compile(rb"\n"), re.compile(rb"\."), re.compile(rb" ")]

    def found(text: bytes, *kinds: re.Pattern[bytes]) -> int:
        path.write_bytes(text)
        return text_files.boundary(path, 1, kinds)

    assert found(b"a b.cd\nefg" + 16 * b"x", *kinds) == 7
    assert found(b"a b.cdefg\nh" + 16 * b"x", *kinds) == 4  # the line ends behind the window of eight bytes
    assert found(b"a bcdefghi.j\n" + 16 * b"x", *kinds) == 2  # so does the sentence
    assert found(b"abcdefghijk lm" + 16 * b"x", *kinds) == 12  # the window of the last kind is longer
    assert found(40 * b"a" + b" b", *kinds) == 42
    assert found(b"a b.cd", *kinds) == 6  # the last record goes on to the end


def test_a_range_of_a_file_ends_within_a_block_and_tells_what_was_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 4)
    path, read = tmp_path / "a.txt", []
    path.write_bytes(b"0123456789")
    assert list(text_files.range_blocks(path, 1, 7, read.append)) == [b"1234", b"56"] and read == [4, 2]
    assert list(text_files.range_blocks(path, 8, 20, read.append)) == [b"89"]
    read.clear()
    assert list(text_files.blocks(path, read.append)) == [b"0123", b"4567", b"89"] and sum(read) == 10
    assert read[:3] == [4, 4, 2]


def test_a_byte_that_is_no_text_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for blocks, place in (
        ((b"abcd", b"e\0f"), "a zero byte at offset 5:"),
        ((b"abcd", b"e\xfff"), "byte 0xff at offset 5,"),
        ((b"abc\xe2\x82", b"e"), "byte 0xe2 at offset 3,"),  # a character that the next block does not complete
        ((b"abc\xe2",), "byte 0xe2 at offset 3,"),
    ):
        with pytest.raises(UserError, match=f"Expected UTF-8 text in {path}, found {place}"):
            list(text_files.characters(path, blocks))
    assert "".join(text_files.characters(path, (b"\xe2", b"\x82", b"\xac"))) == "\u20ac"


@pytest.mark.parametrize(
    ("number", "message"), [(5, r"found that the system cannot \(.*\); check"), (None, "damaged; copy")]
)
def test_a_file_that_cannot_be_read_to_its_end_is_named(
    number: int | None, message: str, tmp_path: Path, monkeypatch
) -> None:
    """The system says why; libraries of compression do not."""

    class Broken(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            if self.tell() >= 5:
                raise OSError(number, os.strerror(number)) if number else OSError("invalid data")
            return super().read(5)

    monkeypatch.setattr(Path, "open", lambda self, mode: Broken(b"one two three"))
    found = text_files.blocks(tmp_path / "a.txt")
    assert next(found) == b"one t"
    with pytest.raises(UserError, match=f"a.txt.*{message}"):
        next(found)


def frame(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0\x10\0\0\0"
"""The frame before each of pzstd's, with the size of the next one."""


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(b"one\n") + gzip.compress(b"two\n"),
        bz2.compress(b"one\n") + bz2.compress(b"two\n"),
        lzma.compress(b"one\n") + lzma.compress(b"two\n"),
        frame(b"one\n") + frame(b"two\n"),
        SKIPPABLE + frame(b"one\n") + SKIPPABLE + frame(b"two\n"),
    ],
    ids=["gzip", "bzip2", "xz", "Zstandard", "pzstd"],
)
def test_every_member_of_a_compressed_file_is_read_whatever_its_name(packed: bytes, tmp_path: Path) -> None:
    for name in ("a.txt", "a.gz", "a.tsv"):
        (tmp_path / name).write_bytes(packed)
        assert text_files.lines(tmp_path / name) == ["one", "two"] and text_files.is_compressed(tmp_path / name)
        assert [*example_files.lines(str(tmp_path / name))] == ["one\n", "two\n"]
    (tmp_path / "plain.gz").write_bytes(b"one\ntwo\n")
    assert text_files.lines(tmp_path / "plain.gz") == ["one", "two"]
    (tmp_path / "cut").write_bytes(packed[:-6])
    with pytest.raises(UserError, match=r"Expected a whole \w+ file at .*cut, found it truncated or damaged"):
        text_files.lines(tmp_path / "cut")


def archive(kind: str) -> bytes:
    held = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(held, "w") as packed:
            packed.writestr("a.txt", "One.")
    else:
        with tarfile.open(fileobj=held, mode=kind) as packed:
            packed.addfile(tarfile.TarInfo("a.txt"))
    return held.getvalue()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (archive("zip"), "a zip archive or an office document; unpack it and name its files"),
        (archive("w:"), "a tar archive; unpack it and name its files"),
        (archive("w:gz"), "a tar archive compressed with gzip; unpack it and name its files"),
        (archive("w:xz"), "a tar archive compressed with xz; unpack it and name its files"),
        (frame(archive("w:")), "a tar archive compressed with Zstandard; unpack it and name its files"),
        (b"\x04\x22\x4d\x18", "an lz4 file; decompress it first"),
        (b"%PDF-1.7\nWords.", "a PDF; extract its text first"),
        (gzip.compress(b"PAR1\x15\x04"), "a Parquet file compressed with gzip; decompress it"),
    ],
    ids=["zip", "tar", "tar.gz", "tar.xz", "tar.zst", "lz4", "PDF", "Parquet"],
)
@pytest.mark.parametrize("format", ["auto", "text", "jsonl", "wikipedia-dump"])
def test_archives_and_other_files_are_named(content: bytes, found: str, format: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    for read in (lambda: list(formats.documents([path], format)), lambda: [*example_files.lines(str(path))]):
        with pytest.raises(UserError, match=f"Expected text in {path}, found {found}"):
            read()
