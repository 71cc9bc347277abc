"""Raw text of every format to documents, and what is said of files that cannot be read."""

import bz2
import gzip
import json
import lzma
import os
import sys

import pyarrow
import pyarrow.parquet
import pytest

from plmjax.data import formats, reading, recognition, wikitext
from plmjax.errors import UserError

WIKI = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en">
  <siteinfo><sitename>Wikipedia</sitename></siteinfo>
  <page><title>Fox</title><ns>0</ns><id>1</id><revision><id>2</id><text xml:space="preserve">%s</text></revision></page>
  <page><title>Vixen</title><ns>0</ns><redirect title="Fox" /><revision><text>#REDIRECT [[Fox]]</text></revision></page>
  <page><title>Talk:Fox</title><ns>1</ns><revision><text>Chatter about foxes.</text></revision></page>
  <page><title>Wolf</title><ns>0</ns><revision><text>Wolves howl &amp;amp; hunt.</text></revision></page>
</mediawiki>
"""

MARKUP = """{{Infobox animal | name = Fox {{nested|{{deeply}}}} | [[image]] }}
[[File:fox.jpg|thumb|A [[red fox]] in snow.]]
'''Foxes''' ({{IPA|x}}) are [[Canidae|canids]] of ''many'' kinds.<ref name="a">A book.</ref><ref name="b" />
They live [http://x.org nearly everywhere]<!-- no -->.

{| class="wikitable"
| a cell of a table.
{|
| a table in it.
|}
|}
== Life ==
* They eat mice&nbsp;and berries.
* [[Berry]]
<gallery>
File:a.jpg|A caption.
</gallery>
:They sleep by <math>x^2</math> day.
== References ==
{{reflist}}
Some reference here.
=== Books ===
A book about foxes.
== After ==
They dig.
[[Category:Foxes]] [[de:Fuchs]]
"""
PARAGRAPHS = [
    "Foxes are canids of many kinds.",
    "They live nearly everywhere.",
    "They eat mice and berries.",
    "They sleep by day.",
    "They dig.",
]

GUTENBERG = """The Project Gutenberg EBook of Nothing, by Nobody

This eBook is for the use of anyone anywhere.

*** START OF THIS PROJECT GUTENBERG EBOOK NOTHING ***

Produced by Somebody and the Online Team

CHAPTER I.

THE BEGINNING

It was a dark and _stormy_ night; the rain fell in torrents, except at
occasional intervals, when it was checked by a violent gust of well-
known wind.

"Who is there?" he asked.

CHAPTER II. In which Nothing Happens

The end came soon, and nobody who was there that night has ever told the
story of it.

*** END OF THIS PROJECT GUTENBERG EBOOK NOTHING ***

Updated editions will replace the previous one.
"""
BOOK = [
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals, when it was checked "
    "by a violent gust of well-known wind.",
    '"Who is there?" he asked.',
    "The end came soon, and nobody who was there that night has ever told the story of it.",
]
EXTRACTED = '<doc id="1" url="u" title="Fox &amp; Co">\nFox &amp; Co\n\nFoxes dig.\nThey sleep.\n</doc>\n'

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
    "lines.jsonl": (
        '{"text": "One.\\nTwo."}\n\n{"id": 3, "text": "Three."}',
        "jsonl",
        [["One.", "Two."], ["Three."]],
    ),
}


def read(paths, format="auto"):
    return [(d.format, formats.prose(d)) for d in formats.documents(paths, format)]


def zstandard(content: bytes) -> bytes:
    """In two frames, as tools that compress in parallel write it."""
    half = len(content) // 2
    return b"".join(pyarrow.compress(part, codec="zstd", asbytes=True) for part in (content[:half], content[half:]))


COMPRESSIONS = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstandard}


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=list(COMPRESSIONS))
@pytest.mark.parametrize("name", FILES)
def test_every_format_is_recognised_and_read(name, compress, tmp_path, monkeypatch):
    text, format, expected = FILES[name]
    path = tmp_path / name
    path.write_bytes(compress(text.encode()))
    assert read([path]) == [(format, paragraphs) for paragraphs in expected]
    monkeypatch.setattr(reading, "BLOCK", 7)  # every cut of the stream, characters and markers included
    assert read([path], format) == [(format, paragraphs) for paragraphs in expected]


def test_folders_are_walked_in_order_without_hidden_files(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden/x.txt", "c/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [text for _, (text,) in read([tmp_path])] == ["a.txt", "b/1.txt", "b/2.txt"]


def test_all_bytes_are_reported(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"Some text.\n\n" * 1000))
    counts = []
    assert len(list(formats.documents([path], "auto", counts.append))) >= 1000
    assert sum(counts) == path.stat().st_size


def test_long_documents_are_cut_between_words(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_DOCUMENT", 100)
    for format in ("text", "books"):
        text = " ".join(f"word{n}" for n in range(500))
        (tmp_path / "a.txt").write_text(text)
        parts = [d.text for d in formats.documents([tmp_path / "a.txt"], format)]
        assert " ".join(parts) == text and max(map(len, parts)) <= 100


@pytest.mark.parametrize("ending", ["", "\n", "\n\n  \n"])
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_a_long_file_without_a_blank_line_is_many_documents(tmp_path, monkeypatch, block, ending):
    """Whatever marks no borders: one sentence per line, a document a line. The cuts are those of the lines alone."""
    monkeypatch.setattr(reading, "BLOCK", block)
    lines = [f"Sentence number {n} of a text." for n in range(1234)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n" + "\n".join(lines) + ending)
    found = [paragraphs for _, paragraphs in read([path], "text")]
    assert [len(paragraphs) for paragraphs in found] == [50] * 24 + [34]
    assert [line for paragraphs in found for line in paragraphs] == lines


def test_borders_that_are_marked_are_kept(tmp_path, monkeypatch):
    """BERT's own format, a file that is a short document, a novel in one line: none of them is cut by lines."""
    monkeypatch.setattr(formats, "UNMARKED", 100)
    long, short = ([f"Sentence {n}." for n in range(count)] for count in (300, 20))
    for text, expected in (
        ("\n".join(long) + "\n\n" + "\n".join(short), [long, short]),
        ("\n".join(short) + "\n \n" + "\n".join(long) + "\n\n", [short, long]),
        ("\n".join(long[:100]), [long[:100]]),
        (" ".join(long), [[" ".join(long)]]),
    ):
        (tmp_path / "a.txt").write_text(text)
        assert [paragraphs for _, paragraphs in read([tmp_path / "a.txt"], "text")] == expected


def test_a_file_without_end_and_without_a_blank_line_is_cut_while_it_is_read(tmp_path, monkeypatch):
    lines = [f"Sentence number {n} of a text." for n in range(3000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    monkeypatch.setattr(formats, "LONGEST_DOCUMENT", 50_000)
    found = [paragraphs for _, paragraphs in read([tmp_path / "a.txt"], "text")]
    assert max(map(len, found)) == 50 and len(found) >= 60
    assert [line for paragraphs in found for line in paragraphs] == lines


def test_a_document_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_DOCUMENT", 100)
    long = " ".join(f"word{n}" for n in range(40))
    (tmp_path / "a.txt").write_text(f"One. And more.\n\nTwo.\n{long}\n")
    found = [d.text for d in formats.documents([tmp_path / "a.txt"], "lines")]
    assert found[:2] == ["One. And more.", "Two."] and " ".join(found[2:]) == long and len(found) > 4


def test_chinese_books(tmp_path):
    (tmp_path / "a.txt").write_text(
        "第一回 宴桃园豪杰\n\n    滚滚长江东逝水，惯\n\n    看秋月春风。\n\n    话说天下大势。\n"
    )
    assert read([tmp_path / "a.txt"], "books") == [("books", ["滚滚长江东逝水，惯看秋月春风。", "话说天下大势。"])]


def test_older_gutenberg_headers():
    from plmjax.data import books

    text = "Etext of X\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\nIt begins.\n\nIt ends.\n\n"
    assert books.prose(text + "End of the Project Gutenberg Etext of X\n") == ["It begins.", "It ends."]


def test_no_markup_is_left_in_a_real_dump(shared_data):
    dump = shared_data / "pretrain" / "wikipedia_xml" / "enwiki-shortened.xml.bz2"
    articles = [formats.prose(document) for document in formats.documents([dump])]
    text = "\n".join(line for article in articles for line in article)
    assert len(articles) == 106 and len(text) > 2_500_000
    assert not [mark for mark in ("{{", "}}", "[[", "]]", "{|", "|}", "<ref", "==", "''", "http") if mark in text]
    assert "Anarchism is a political philosophy that advocates self-governed societies" in articles[0][0]


def test_unbalanced_markup_ends():
    assert wikitext.prose("{{" * 2000 + "A line. " + "[[" * 2000) != [""]


def test_tfds(tmp_path):
    """The text of every split of a dataset on disk."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def store(name, **features):
        examples = {key: ["One.\nTwo.", "Three é."] for key in features}
        train, test = (
            tf.data.Dataset.from_tensor_slices({key: column[:count] for key, column in examples.items()})
            for count in (2, 1)
        )
        tfds.dataset_builders.store_as_tfds_dataset(
            name,
            "1.0.0",
            data_dir=tmp_path,
            split_datasets={"train": train, "test": test},
            features=tfds.features.FeaturesDict(features),
        )

    text = tfds.features.Text()
    store("letters", body=text, text=text)
    found = sorted((d.place, formats.prose(d)) for d in formats.documents([tmp_path], "tfds:letters"))
    assert [place.removeprefix("tfds:letters/") for place, _ in found] == [
        "test example 0",
        "train example 0",
        "train example 1",
    ]
    assert sorted(paragraphs for _, paragraphs in found[1:]) == [["One.", "Two."], ["Three é."]]
    store("pairs", left=text, right=text)
    with pytest.raises(
        UserError, match=r"text named 'text' in the TFDS dataset 'pairs', found left, right; name .*--text_key"
    ):
        list(formats.documents([tmp_path], "tfds:pairs"))
    assert len(list(formats.documents([tmp_path], "tfds:pairs", text_key="right"))) == 3
    with pytest.raises(UserError, match="no_such_corpus"):
        list(formats.documents([tmp_path], "tfds:no_such_corpus"))


LONG = "".join(f"A sentence with the number {n * n}. \n\n" for n in range(2000)).encode()
BAD = {
    "empty.txt": (b"", "empty file"),
    "empty.txt.gz": (gzip.compress(b""), "empty file"),
    "binary.txt": (b"text \x00\x01", "zero byte at offset 5"),
    "latin.txt": (b"\xef\xbb\xbfcaf\xe9 au lait", "0xe9 at offset 6"),
    "cut.txt": ("end é".encode()[:-1], "0xc3 at offset 4"),
    "utf16.txt": ("text".encode("utf-16"), "zero byte|0xff at offset 0"),
    "cut.txt.gz": (gzip.compress(LONG)[:-100], "truncated or damaged"),
    "flipped.txt.gz": (gzip.compress(LONG)[:-8] + bytes(8), "truncated or damaged"),
    "cut.txt.bz2": (bz2.compress(LONG)[:-100], "truncated or damaged"),
    "cut.txt.xz": (lzma.compress(LONG)[:-100], "truncated or damaged"),
    "flipped.txt.xz": (lzma.compress(LONG)[:80] + bytes(20) + lzma.compress(LONG)[100:], "truncated or damaged"),
    "cut.txt.zst": (zstandard(LONG)[:-10], "truncated or damaged"),
    "cut.parquet": (b"PAR1" + bytes(100), "Parquet"),
    "flipped.txt.bz2": (bz2.compress(LONG)[:40] + bytes(20) + bz2.compress(LONG)[60:], "damaged"),
    "cut.xml": ((WIKI % "A fox.").encode()[:-40], "truncated"),
    "latin.xml": ((WIKI % "caf\xe9").encode("latin-1"), f"at byte {(WIKI % 'caf|').index('|')}"),
    "cut_wiki": (EXTRACTED[:-8].encode(), "last one open"),
    "outside_wiki": ((EXTRACTED + "stray").encode(), "found 'stray'"),
    "cut.jsonl": (b'{"text": "One."}\n{"text": "Tw', "line 2, found text that is none"),
    "list.jsonl": (b"[1]\n", "found list"),
    "number.jsonl": (b'{"text": 3}\n', "found the keys text; name the one"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_sentence(name, tmp_path):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read([tmp_path / name])
    assert name in str(caught.value) and "\n" not in str(caught.value)


JSON_LINES = b'{"body": "One.\\nTwo.", "id": 1}\n{"body": "Three."}\n'


def test_the_key_of_the_text_is_an_option(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(JSON_LINES)
    found = [formats.prose(d) for d in formats.documents([path], text_key="body")]
    assert found == [["One.", "Two."], ["Three."]]
    assert list(formats.texts([path], text_key="body")) == ["One.\nTwo.", "Three."]
    with pytest.raises(UserError, match=r"string 'text' in .*a.jsonl line 1, found the keys body, id; .*--text_key"):
        read([path])
    with pytest.raises(UserError, match=r"string 'id' in .* found the keys body, id"):
        [formats.prose(d) for d in formats.documents([path], text_key="id")]


def test_parquet(tmp_path):
    rows = {"text": ["One.\nTwo.", None, "Three."] + ["More."] * 300, "body": ["A."] * 303, "id": list(range(303))}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows), path, row_group_size=100)
    counts = []
    found = list(formats.documents([path], "auto", counts.append))
    assert [formats.prose(d) for d in found if d.text][:2] == [["One.", "Two."], ["Three."]]
    assert len(found) == 303 and sum(counts) == path.stat().st_size
    assert found[2].place == f"{path} row 3"
    assert {d.text for d in formats.documents([path], "parquet", text_key="body")} == {"A."}
    for key in ("id", "absent"):
        with pytest.raises(UserError, match=f"column of text named '{key}' .* found the columns text, body, id; name"):
            list(formats.documents([path], text_key=key))


NO_PROSE = {
    "page.txt": ("<!-- saved -->\n<!DOCTYPE html>\n<html><body><p>Words.</p></body></html>", "HTML"),
    "part.html": ("<p>Words of a page.</p>", "HTML"),
    "feed.txt": ('<?xml version="1.0"?>\n<rss><item>Words.</item></rss>', "XML"),
    "list.txt": ('[\n  {"text": "One."},\n  {"text": "Two."}\n]\n', "a JSON array"),
    "strings.txt": ('["One.", "Two."]', "a JSON array"),
    "list.json": ("[1, 2]", "a JSON array"),
    "wide.json": ('{\n  "version": 1,\n  "data": []\n}\n', "a JSON object of many lines"),
    "a.csv": ("text,label\nWords.,1\n", "a table"),
    "tabs.txt": ("A good film.\tgood\n" * 12, "a table"),
    "commas.txt": ("id,text,label\n" + '1,"Words, and more.",good\n' * 12, "a table"),
    "old.txt": ("{\\rtf1 Words.}", "RTF"),
}


@pytest.mark.parametrize("name", NO_PROSE)
def test_what_is_no_prose_is_refused_unless_it_is_asked_for(tmp_path, name):
    content, what = NO_PROSE[name]
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(UserError, match=rf"Expected prose in .*{name}.gz, found {what}; .* with the format text"):
        read([path])
    assert read([path], "text")


@pytest.mark.parametrize(
    "text",
    [
        "[Illustration: a fox]\n\nA fox sat here.\n" * 20,
        '["Hello," said the fox, "who is there?"]\n' * 20,
        "[[File:Fox.jpg]] A fox.\n" * 20,
        "{Here} it begins: a poem.\n" * 20,
        "Roses, red\nViolets, blue\n" * 20,
        "床前明月光,疑是地上霜。\n举头望明月,低头思故乡。\n" * 20,
        "\tHe said no.\n\tShe said yes.\n" * 20,
        "<p> is the tag of a paragraph, and this is a paragraph about it.\n" * 20,
        "Yes\nNo\nYes\n" * 20,
        "Dear John,\nthank you,\nyours,\nMary\n" * 5,
    ],
)
def test_prose_is_never_taken_for_something_else(tmp_path, text):
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert {format for format, _ in read([tmp_path / "a.txt"])} <= {"text", "books"}


def test_real_text_is_recognised_and_real_tables_are_refused(shared_data):
    expected = {
        "wikipedia_en": "wikiextractor",
        "books_en": "books",
        "books_zh": "text",
        "tinyshakespeare": "text",
        "wikitext2": "text",
        "wikipedia_xml": "wikipedia-dump",
    }
    recognised: dict[str, set[str]] = {folder: set() for folder in expected}
    for path in formats.files([shared_data / "pretrain"]):
        folder = path.relative_to(shared_data / "pretrain").parts[0]
        recognised[folder].add(recognition.recognise(path, next(reading.blocks(path))))
    assert all(expected[folder] in found <= {expected[folder], "text", "books"} for folder, found in recognised.items())
    refused = 0
    for path in formats.files([shared_data / "finetune"]):
        try:
            recognition.recognise(path, next(reading.blocks(path)))
        except UserError as error:
            refused += "found a table" in str(error)
    assert refused >= 6


def test_bad_requests_are_one_sentence(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("text")
    for inputs, format, message in (
        ([tmp_path / "absent"], "auto", "found nothing"),
        ([tmp_path / "folder"], "auto", "found none"),
        ([], "auto", "none named"),
        ([tmp_path / "a.txt"], "txt", "did you mean 'text'"),
        ([tmp_path / "a.txt"], "wikiextractor", "<doc"),
        ([tmp_path / "a.txt"], "wikipedia-dump", "XML"),
    ):
        with pytest.raises(UserError, match=message):
            read(inputs, format)


def test_a_record_without_end_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_RECORD", 1000)
    monkeypatch.setattr(reading, "BLOCK", 100)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 5000}))
    (tmp_path / "a.xml").write_text(WIKI % ("x" * 5000))
    for name in ("a.jsonl", "a.xml"):
        with pytest.raises(UserError, match="1000 characters"):
            read([tmp_path / name])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such names")
def test_a_name_that_is_no_text_is_refused(tmp_path):
    """Its dataset could not be opened: JSON holds no half of a surrogate pair."""
    path = tmp_path / os.fsdecode(b"a\xff.txt")
    path.write_text("One.")
    for inputs in ([path], [tmp_path]):
        with pytest.raises(UserError, match=r"Expected names of files in UTF-8, found '.*a\\udcff\.txt'; rename it"):
            formats.sources(inputs, "auto")


def test_text_of_a_parquet_file_that_is_no_utf8_is_one_sentence(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["One of them."]}), path, compression="none", use_dictionary=False
    )
    path.write_bytes(path.read_bytes().replace(b"One of", b"One\xff\xfe\xff"))
    with pytest.raises(UserError, match=r"a whole Parquet file in .*a\.parquet, found one that cannot be read"):
        read([path])
