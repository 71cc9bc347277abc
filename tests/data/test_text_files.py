"""Text of UTF-8 blocks, and one way to divide it into lines: the ends of any system, and nothing else."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pytest

from plmjax.data import text_files
from plmjax.finetuning.files import tables
from plmjax.finetuning.files import text_files as example_files
from tests.data.formats.samples import read
from tests.data.mistakes import refused


def frame(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0\x10\0\0\0"
"""The frame before each of pzstd's, with the size of the next one."""


PACKED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "Zstandard": frame}
PACKED["pzstd"] = lambda content: SKIPPABLE + frame(content)


@pytest.mark.parametrize("kind", PACKED)
def test_every_member_of_a_compressed_file_is_read_whatever_its_name(kind: str, tmp_path: Path) -> None:
    packed = PACKED[kind](b"one\n") + PACKED[kind](b"two\n")
    (tmp_path / "a.txt").write_bytes(packed)
    (tmp_path / "plain.gz").write_bytes(b"one\ntwo\n")
    for name in ("a.txt", "plain.gz"):
        assert text_files.lines(tmp_path / name) == ["one", "two"]
        assert text_files.is_compressed(tmp_path / name) == (name == "a.txt")
        assert [*example_files.lines(str(tmp_path / name))] == ["one\n", "two\n"]
    (tmp_path / "cut").write_bytes(packed[:-6])
    refused(lambda: text_files.lines(tmp_path / "cut"), "cut .. truncated or damaged")


ENDS = {"unix": "\n", "windows": "\r\n", "macintosh": "\r"}
WITHIN = ["a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "a\u2029b", "a\u00a0b"]
LINES = ["One.", *(f"{text}." for text in WITHIN), "Two."]


def columns(path: Path) -> list[str]:
    return [row["text"] for _, row in tables.rows(str(path))]


def paragraphs(format: str):
    return lambda path: [line for _, lines in read([path], format) for line in lines]


READERS = {
    "prompts and texts to embed": (text_files.lines, LINES),
    "texts to predict": (lambda path: [line.removesuffix("\n") for line in example_files.lines(str(path))], LINES),
    "lines": (paragraphs("lines"), LINES),
    "text": (paragraphs("text"), LINES),
    "jsonl": (paragraphs("jsonl"), [json.dumps({"text": line}, ensure_ascii=False) for line in LINES]),
    "tsv": (paragraphs("tsv"), ["number\ttext", *(f"{number}\t{line}" for number, line in enumerate(LINES))]),
    "rows of a .tsv": (columns, ["text\tlabel", *(f"{line}\tx" for line in LINES)]),
    "rows of a .csv": (columns, ["text,label", *(f'"{line}",x' for line in LINES)]),
    "rows of a .jsonl": (columns, [json.dumps({"text": line}, ensure_ascii=False) for line in LINES]),
    "wikiextractor": (paragraphs("wikiextractor"), ['<doc id="1" title="T">', *LINES, "</doc>"]),
    "books": (paragraphs("books"), [line for text in LINES for line in (text, "")]),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_the_same_lines(reader, end, tmp_path, monkeypatch) -> None:
    """Blocks may divide a carriage return from its line feed."""
    lines_of, written = READERS[reader]
    suffix = reader.rpartition(" ")[2] if reader.startswith("rows") else ".txt"
    data = "".join(f"{line}{ENDS[end]}" for line in written).encode()
    expected = [" ".join(line.split()) for line in LINES] if reader == "books" else LINES
    for name, content in ((f"rows{suffix}", data), (f"rows{suffix}.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        for block in (1, 7, 1 << 20):
            monkeypatch.setattr(text_files, "BLOCK", block)
            assert lines_of(tmp_path / name) == expected, (name, block)
