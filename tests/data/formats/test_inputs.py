"""Raw text of every format to documents, and the errors for files that cannot be read."""

import bz2
import gzip
import hashlib
import json
import lzma

import pytest

from plmjax.data import formats, text_files, text_size
from plmjax.data.formats import cutting, documentation
from tests.data.formats.samples import BOOK, EXTRACTED, GUTENBERG, MARKUP, PARAGRAPHS, WIKI, read, zstandard
from tests.data.mistakes import refused

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


def test_an_article_of_wikiextractor_that_is_too_long_is_cut(tmp_path, monkeypatch):
    """The title belongs to its first part; an article that is not closed is an error, cut or not."""
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 120)
    lines = [f"Sentence number {n} of an article." for n in range(30)]
    text = '<doc id="1" title="Fox &amp; Co">\nFox & Co\n' + "\n".join(lines) + "\n</doc>\n"
    for block in (50, 1 << 20):
        monkeypatch.setattr(text_files, "BLOCK", block)
        (tmp_path / "wiki_00").write_text(text + EXTRACTED)
        *parts, last = (paragraphs for _, paragraphs in read([tmp_path / "wiki_00"], "wikiextractor"))
        assert [line for part in parts for line in part] == lines and last == ["Foxes dig.", "They sleep."]
        (tmp_path / "wiki_00").write_text(text.removesuffix("</doc>\n"))
        refused(lambda: read([tmp_path / "wiki_00"], "wikiextractor"), "the last one open")


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
