"""Files and requests that give no documents: what is there, where, and what is to be done."""

import bz2
import functools
import gzip
import json
import lzma
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from plmjax.data import formats, text_files
from plmjax.data.formats import cutting, records
from tests.data.formats.published import WORDS, write
from tests.data.formats.samples import EXTRACTED, RECORDS, WIKI, record, write_table, zstandard
from tests.data.mistakes import refused

LONG = "".join(f"A sentence with the number {n * n}. \n\n" for n in range(2000)).encode()
NUMBER = '{"a": "One.", "n": %s}'


def read(*paths: Path, format: str = "auto", **options: Any) -> list:
    """All that a preparation reads of some files."""
    parts = options.get("parts")
    found = list(formats.documents(paths, format=format, **options))
    return [
        (formats.streams_of(one, parts), formats.fields_of(one, parts)) if parts else formats.prose(one)
        for one in found
    ]


def changed(data: bytes, place: int) -> bytes:
    return data[:place] + bytes(20) + data[place + 20 :]


def arrow(**columns: Any) -> bytes:
    held, table = pyarrow.BufferOutputStream(), pyarrow.table(columns)
    with pyarrow.ipc.new_stream(held, table.schema) as writer:
        writer.write_table(table)
    return held.getvalue().to_pybytes()


def parquet(**columns: Any) -> bytes:
    held = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), held, compression="none", use_dictionary=False)
    return held.getvalue().to_pybytes()


FILES = [
    ("empty.txt.gz", gzip.compress(b""), "empty file"),
    ("zip.txt", b"PK\x03\x04", "a zip archive"),
    ("tar.txt.gz", gzip.compress(tarfile.TarInfo("a").tobuf()), "a tar archive compressed with gzip"),
    ("pdf.txt", b"%PDF-1.7\nWords.", "a PDF"),
    ("binary.txt", b"text \x00\x01", "zero byte at offset 5"),
    ("latin.txt", b"\xef\xbb\xbfcaf\xe9 au lait", "0xe9 at offset 6"),
    ("cut.txt", "end é".encode()[:-1], "0xc3 at offset 4"),
    ("cut.txt.gz", gzip.compress(LONG)[:-100], "truncated or damaged"),
    ("flipped.txt.gz", gzip.compress(LONG)[:-8] + bytes(8), "truncated or damaged"),
    ("flipped.txt.bz2", changed(bz2.compress(LONG), 40), "damaged"),
    ("flipped.txt.xz", changed(lzma.compress(LONG), 80), "truncated or damaged"),
    ("cut.txt.zst", zstandard(LONG)[:-10], "truncated or damaged"),
    ("cut.parquet", b"PAR1" + bytes(100), "Parquet"),
    ("odd.parquet", parquet(text=["One of them."]).replace(b"One of", b"One\xff\xfe\xff"), "Parquet .. cannot be read"),
    ("latin.parquet", parquet(text=[b"One.", b"caf\xe9"]), "row 2 .. 0xe9 at offset 3"),
    ("cut.arrow", arrow(text=[f"Number {n} of many." for n in range(3000)])[:-2000], "Arrow .. cannot be read"),
    ("cut.xml", (WIKI % "A fox.").encode()[:-40], "truncated"),
    ("latin.xml", (WIKI % "caf\xe9").encode("latin-1"), f"at byte {(WIKI % 'caf|').index('|')}"),
    ("cut_wiki", EXTRACTED[:-8].encode(), "last one open"),
    ("outside_wiki", (EXTRACTED + "stray").encode(), "'stray'"),
    ("cut.jsonl", b'{"text": "One."}\n{"text": "Tw', "line 2 .. none"),
    ("list.jsonl", b"[1]\n", "list"),
    ("part.jsonl", b'{"text": [1], "id": 1}\n', "'text' .. line 1 .. a list .. text, id .. as one string"),
    ("key.jsonl", b'{"body": "One.", "id": 1}\n', "'text' .. line 1 .. body, id .. --text_key"),
    ("response.wet", record("response", "HTTP/1.1 200 OK"), "conversion .. 'response'"),
    ("cut.wet", record("conversion", "A page.", 100), "100 bytes .. record 1 .. end of the file"),
    ("short.wet", record("conversion", "A page.", 3), "header .. record 2"),
    ("negative.wet", record("conversion", "A page.", -1), "Content-Length .. '-1'"),
    ("latin.wet", RECORDS[1].replace(b"page", b"p\xffge"), "record 1 .. 0xff at offset 3"),
]


@pytest.mark.parametrize(("name", "content", "parts"), FILES, ids=[name for name, *_ in FILES])
def test_bad_files(name: str, content: bytes, parts: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    refused(lambda: read(tmp_path / name), f"{name} .. {parts}")


TABLES = {
    "list": (pyarrow.table({"text": pyarrow.array([["One."]]), "body": ["A."]}), "list< .. text, body"),
    "number": (pyarrow.table({"text": [1], "body": ["A."]}), "int64 .. text, body"),
    "absent": (pyarrow.table({"id": [1], "body": ["A."]}), "id, body .. --text_key"),
    "twice": (pyarrow.table([pyarrow.array(["One."])] * 2, names=["text", "text"]), "text, text"),
}
NO_NUMBERS = pyarrow.table(
    {"text": ["One."], "missing": pyarrow.nulls(1, pyarrow.int64()), "none": [float("nan")], "bytes": [b"x"]}
)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_that_are_no_text_or_no_numbers(suffix: str, tmp_path: Path) -> None:
    for case, (table, parts) in TABLES.items():
        path = write_table(tmp_path / f"{case}{suffix}", table)
        refused(lambda path=path: read(path), f"'text' .. {path} .. {parts}")
    path = write_table(tmp_path / f"a{suffix}", NO_NUMBERS)
    for name, found in (("missing", "null"), ("none", "'nan'"), ("bytes", "\"b'x'\"")):
        of = records.Parts({"text": "text"}, (name,))
        refused(lambda of=of: read(path, parts=of), f"'{name}' .. row 1 .. {found}")


PARTS = records.Parts({"text": "a"}, ("n",))


RECORDS_WITH_PARTS = [
    ("a.jsonl", '{"b": "One.", "n": 1}', PARTS, "'a' .. line 1 .. b, n .. --streams"),
    ("a.jsonl", NUMBER % ("9" * 400), PARTS, "'n' .. line 1 .. '9999"),
    ("a.jsonl", NUMBER % '"two foxes"', PARTS, "'n' .. line 1 .. 'two foxes'"),
    ("a.jsonl", '{"a": "One. \\ud800", "n": 1}', PARTS, "line 1 .. half of a surrogate pair"),
    ("a.tsv", "en\tde", records.Parts({"a": "en", "b": "fr"}), "'fr' .. a.tsv .. en, de"),
    ("a.tsv", "one\ttwo", records.Parts({"a": "1", "b": "3"}), "'3' .. a.tsv .. 1, 2"),
    ("a.tsv", "en\tde\na\tb\tc", records.Parts({"a": "en", "b": "de"}), "2 columns .. line 2 .. 3"),
    ("a.txt", "A text.\n\nAnother one.\n", PARTS, "--streams .. the format text"),
]


def test_records_that_lack_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content, of, parts in RECORDS_WITH_PARTS:
        (tmp_path / name).write_text(f"{content}\n")
        format = "tsv" if name == "a.tsv" else "auto"
        refused(functools.partial(read, tmp_path / name, format=format, parts=of), parts)
    for options in (["source="], ["a=1", "a=2"]):
        refused(lambda options=options: records.streams(options), "--streams .. NAME=KEY")
    monkeypatch.setattr(cutting, "LONGEST_RECORD", 1000)
    monkeypatch.setattr(text_files, "BLOCK", 100)
    for name, content in (("a.jsonl", json.dumps({"text": "x" * 5000})), ("a.xml", WIKI % ("x" * 5000))):
        (tmp_path / name).write_text(content)
        refused(lambda name=name: read(tmp_path / name), "1000 characters")


REQUESTS = [
    (["absent"], "auto", "absent .. nothing"),
    (["folder"], "auto", "folder .. none"),
    ([], "auto", "none named"),
    (["a.txt"], "txt", "did you mean 'text'"),
    (["a.txt"], "wikiextractor", "<doc"),
    (["a", "b"], "tfds:letters", "at most one --input .. tfds:letters .. 2"),
    (["short"], "enwik8", "1,000 bytes .. enwik8 .. 999"),
    (["latin"], "enwik8", "0xff at offset 910"),
    (["folder"], "enwik8", "the file enwik8 .. none"),
    (["a.txt"], "wikitext-2", "folder of WikiText-2 .. the file"),
    (["folder"], "wikitext-2", "wiki.train.tokens or train.txt"),
    (["absent"], "wikitext-103", "WikiText-103 .. nothing"),
    (["words"], "wikitext-2", f"{WORDS['validation']} words .. validation .. {WORDS['validation'] + 3}"),
    (["a.txt", "a.txt"], "enwik8", "one path .. 2"),
]


@pytest.mark.parametrize(("inputs", "format", "parts"), REQUESTS, ids=str)
def test_requests(small_corpora, inputs: list[str], format: str, parts: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "short").write_bytes(b"x" * 999)
    (tmp_path / "latin").write_bytes(b"x" * 910 + b"\xff" * 90)
    with (write("wikitext-2", tmp_path / "words") / "wiki.valid.tokens").open("a") as file:
        file.write("one more\n")
    refused(lambda: read(*(tmp_path / name for name in inputs), format=format), parts)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such names")
def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """Its dataset could not be opened: JSON holds no half of a surrogate pair."""
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("One.")
    refused(lambda: formats.sources([tmp_path], "auto"), "\\udcff.txt' .. rename it")
