"""Raw text of every format to documents, pages of WET, and texts that are too long to hold or mark no borders."""

import bz2
import gzip
import hashlib
import itertools
import json
import lzma
from pathlib import Path

import pytest
from tensorflow_datasets.text import c4_utils

from plmjax.data import formats, text_files, text_size
from plmjax.data.formats import cutting, documentation
from plmjax.data.formats import text as text_format
from tests.data.formats.samples import (
    BOOK,
    EXTRACTED,
    GUTENBERG,
    MARKUP,
    PAGES,
    PARAGRAPHS,
    RECORDS,
    WIKI,
    read,
    record,
    zstandard,
)

# name of a file -> its text, the format it is recognised as, and its documents
FILES = {
    "a.txt": (
        "One line.\nAnother.\n\n \nSecond document.\nIts end.",
        "text",
        [["One line.", "Another."], ["Second document.", "Its end."]],
    ),
    "wiki.xml": (
        WIKI % MARKUP.replace("&", "&amp;").replace("<", "&lt;"),
        "wikipedia-dump",
        [PARAGRAPHS, ["Wolves howl & hunt."]],
    ),
    "wiki_00": (EXTRACTED * 2, "wikiextractor", [["Foxes dig.", "They sleep."]] * 2),
    "book.txt": (GUTENBERG, "books", [BOOK]),
    "lines.jsonl": ('{"text": "One.\\nTwo."}\n\n{"id": 3, "text": "Three."}', "jsonl", [["One.", "Two."], ["Three."]]),
}
COMPRESSIONS = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstandard}


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=list(COMPRESSIONS))
def test_every_format_is_recognised_and_read(compress, tmp_path, monkeypatch):
    for name, (text, format, expected) in FILES.items():
        (path := tmp_path / name).write_bytes(compress(text.encode()))
        for block in (1 << 20, 7):  # every cut of the stream, characters and markers included
            monkeypatch.setattr(text_files, "BLOCK", block)
            found = read([path], "auto" if block > 7 else format)
            assert found == [(format, paragraphs) for paragraphs in expected]


def blake(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def test_a_sample_has_the_documents_with_the_least_hashes(tmp_path):
    """Evenly from the whole text, in its order, and the same from any order of the files."""
    texts = [f"The document with the number {number}, {'and more ' * (number % 7)}of it." for number in range(600)]
    for part in range(3):
        (tmp_path / f"{part}.txt").write_text("\n\n".join(texts[part::3]))
    paths = sorted(tmp_path.iterdir())
    sample = list(formats.texts(paths, format="text", limit_bytes=6000))
    read = [text for part in range(3) for text in texts[part::3]]
    assert sample == [text for text in read if text in sample]  # in order
    assert 6000 <= sum(map(len, sample)) < 6000 + max(map(len, texts))
    assert sorted(sample, key=blake) == sorted(texts, key=blake)[: len(sample)]
    assert sorted(formats.texts(paths[::-1], format="text", limit_bytes=6000)) == sorted(sample)
    counts = [sum(text in texts[part::3] for text in sample) for part in range(3)]
    assert min(counts) > len(sample) / 6 and any(text in texts[500:] for text in sample)
    assert list(formats.texts(paths, format="text")) == read  # a small text is its own sample
    (tmp_path / ".hidden").write_text("No text.")  # a folder is walked in order
    texts = [f"Document {number:02}." for number in range(20)]  # 12 bytes each
    for name in ("b/2.txt", "b/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(formats.texts([tmp_path], format="text")) == [*read, "b/1.txt", "b/2.txt"]
    (tmp_path / "b" / "1.txt").write_text("\n\n".join(texts))
    for limit, count in ((36, 3), (37, 4)):  # full at exactly the limit
        sample = list(formats.texts([tmp_path / "b" / "1.txt"], format="text", limit_bytes=limit))
        assert sample == sorted(sorted(texts, key=blake)[:count])


def test_sources_name_the_text_whatever_it_is(tmp_path, monkeypatch):
    """A file by its digest, a dataset of TFDS by its name and folder, and the embedded corpus by its libraries."""
    (tmp_path / "a.txt").write_text("Some text.")
    (file,) = formats.sources([tmp_path / "a.txt"], "text")
    assert (file["path"], file["bytes"]) == (str(tmp_path / "a.txt"), 10) and file["digest"]
    assert formats.sources([tmp_path], "tfds:letters") == [
        {"path": "tfds:letters", "bytes": 0, "data": [str(tmp_path)]}
    ]  # fmt: skip
    assert formats.sources([], "documentation") == documentation.sources()
    monkeypatch.setattr(documentation, "documents", lambda: (("json", "It reads.\nIt writes."), ("re", "It finds.")))
    found = list(formats.documents([], format="documentation"))
    assert [document.place for document in found] == ["documentation of json", "documentation of re"]
    assert [formats.prose(document) for document in found] == [["It reads.", "It writes."], ["It finds."]]


def test_the_size_of_a_text_is_its_lines_with_their_ends_without_blank_ones(tmp_path):
    """For records, the text under the key counts. Documents without text are no part of a sample."""
    (tmp_path / "a.txt").write_text("Déjà vu.\n\n \nTwo  words\n天\n", encoding="utf-8")
    expected = text_size.TextSize(bytes=11 + 11 + 4, characters=9 + 11 + 2, words=5)
    assert text_size.measure([tmp_path / "a.txt"], "text") == expected
    lines = [json.dumps({"text": "No.", "body": body}) for body in ("One two.", "Three.")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for key, size in (("body", (16, 16, 3)), ("text", (8, 8, 2))):
        assert text_size.measure([tmp_path / "a.jsonl"], text_key=key) == text_size.TextSize(*size)
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "One."}\n{"text": " "}\n')
    for limit in (None, 100):
        assert list(formats.texts([tmp_path / "a.jsonl"], limit_bytes=limit)) == ["One."]


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


def test_long_documents_are_cut_between_words(tmp_path, monkeypatch):
    """One is a line, a book, or what stands between blank lines."""
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    long = " ".join(f"word{n}" for n in range(40))
    for format, text in (("text", long), ("books", long), ("lines", f"One. And more.\n\nTwo.\n{long}\n")):
        (tmp_path / "a.txt").write_text(text)
        found = [document.text for document in formats.documents([tmp_path / "a.txt"], format=format)]
        short = 2 * (format == "lines")
        assert found[:short] == ["One. And more.", "Two."][:short]
        assert " ".join(found[short:]) == long and len(found) > 2 and max(map(len, found)) <= 100
    for text, cut in (  # at the best end in the second half
        ("a" * 60 + f"\n\nbbbbb\nccccc {'d' * 90}", ("a" * 60, f"bbbbb\nccccc {'d' * 90}")),
        ("a" * 49 + " " + "b" * 90, ("a" * 49 + " " + "b" * 50, "b" * 40)),
        ("a" * 50 + " " + "b" * 90, ("a" * 50, "b" * 90)),
    ):
        assert cutting.cut(text) == cut
    monkeypatch.setattr(text_files, "BLOCK", 64)  # a document that spans several blocks keeps all of its lines
    lines = [f"Line {n} of a text." for n in range(40)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\nA short one.\n")
    *parts, last = (paragraphs for _, paragraphs in read([tmp_path / "a.txt"], "text"))
    assert last == ["A short one."] and [line for part in parts for line in part] == lines


@pytest.mark.parametrize(("block", "ending"), [(7, "\n\n  \n"), (1 << 20, "")])
def test_a_long_file_without_a_blank_line_is_many_documents(tmp_path, monkeypatch, block, ending):
    """Its lines may be sentences or documents; the borders depend on the lines alone."""
    monkeypatch.setattr(text_files, "BLOCK", block)
    lines = [f"Sentence number {n} of a text." for n in range(1234)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n" + "\n".join(lines) + ending)
    found = [paragraphs for _, paragraphs in read([path], "text")]
    assert [len(paragraphs) for paragraphs in found] == [50] * 24 + [34]
    assert [line for paragraphs in found for line in paragraphs] == lines


def test_borders_that_are_marked_are_kept(tmp_path, monkeypatch):
    """Kept whole: BERT's own format, a file that is a short document, a novel in one line."""
    monkeypatch.setattr(text_format, "UNMARKED", 100)
    long, short = ([f"Sentence {n}." for n in range(count)] for count in (300, 20))
    for text, expected in (
        ("\n".join(long) + "\n\n" + "\n".join(short), [long, short]),
        ("\n".join(short) + "\n \n" + "\n".join(long) + "\n\n", [short, long]),
        ("\n".join(long[:100]), [long[:100]]),
        (" ".join(long), [[" ".join(long)]]),
    ):
        (tmp_path / "a.txt").write_text(text)
        assert [paragraphs for _, paragraphs in read([tmp_path / "a.txt"], "text")] == expected
