"""One way to divide a text into lines: every reader takes the line ends of any system, and nothing else."""

import gzip
import json
from pathlib import Path

import pytest

from plmjax.data import formats, text_files
from plmjax.finetuning.files import tables
from plmjax.finetuning.files import text_files as example_files
from tests.data.formats.samples import read

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


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_the_same_lines(reader, end, packed, block, tmp_path, monkeypatch) -> None:
    """Blocks may divide a carriage return from its line feed."""
    monkeypatch.setattr(text_files, "BLOCK", block)
    lines_of, written = READERS[reader]
    suffix = reader.rpartition(" ")[2] if reader.startswith("rows") else ".txt"
    path = tmp_path / f"rows{suffix}{'.gz' * packed}"
    data = "".join(f"{line}{ENDS[end]}" for line in written).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    expected = [" ".join(line.split()) for line in LINES] if reader == "books" else LINES
    assert lines_of(path) == expected


def test_line_ends_within_a_text_are_those_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "One.\r\nTwo.\rThree.\n\u2028Four."}))
    assert read([path]) == [("jsonl", ["One.", "Two.", "Three.", "\u2028Four."])]


def test_blank_lines_of_any_system_divide_documents(tmp_path: Path) -> None:
    for number, end in enumerate(ENDS.values()):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(f"One.{end}Two.{end}{end}Three.{end} \x0c{end}Four.{end}".encode())
        assert read([path], "text") == [("text", lines) for lines in (["One.", "Two."], ["Three."], ["Four."])]
        assert len(list(formats.documents([path], "lines"))) == 4
