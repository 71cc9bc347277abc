"""Formats told from the beginning of a file, and text that is no prose."""

import gzip
from pathlib import Path

import pytest

from plmjax.data import formats, text_files
from plmjax.data.formats import recognition
from plmjax.errors import UserError
from tests.data.formats.samples import read
from tests.data.mistakes import refused


def recognised(path: Path, head: bytes = b"") -> str:
    """The format of a file, or what it is that is no prose."""
    try:
        return recognition.recognise(path, head or next(text_files.blocks(path)))
    except UserError as error:
        return str(error).split("found ")[1].split(";")[0]


def test_prose_is_never_taken_for_something_else():
    """Lines of one sentence each are no book either, however long, with and without full stops."""
    for text in (
        "[Illustration: a fox]\n\nA fox sat here.\n",
        '["Hello," said the fox, "who is there?"]\n',
        "[[File:Fox.jpg]] A fox.\n",
        "{Here} it begins: a poem.\n",
        "Roses, red\nViolets, blue\n",
        "床前明月光,疑是地上霜。\n举头望明月,低头思故乡。\n",
        "\tHe said no.\n\tShe said yes.\n",
        "<p> is the tag of a paragraph, and this is a paragraph about it.\n",
        "Yes\nNo\nYes\n",
    ):
        assert recognised(Path("a.txt"), (text * 20).encode()) in ("text", "books")
    words = "the quick brown fox jumps over a lazy old dog that sleeps beside my small wooden house today".split()
    lines = [" ".join(words[(3 * n + k) % 18] for k in range(11 + n % 5)) for n in range(400)]
    lines = [line for line in lines if 50 <= len(line) <= 85]
    for stop in (".", "?", "”", "。", "।", ""):
        assert recognised(Path("a"), "".join(f"{line}{stop}\n" for line in lines).encode()) == "text"


def test_real_text_is_recognised_and_real_tables_are_refused(shared_data):
    """Novels with broken lines are books."""
    expected = {"wikipedia_en": "wikiextractor", "wikipedia_xml": "wikipedia-dump", "books_en": "books"}
    expected |= dict.fromkeys(("books_zh", "tinyshakespeare", "wikitext2"), "text")
    for folder, format in expected.items():
        found = [recognised(path) for path in formats.files([shared_data / "pretrain" / folder])]
        assert format in found and {*found} <= {format, "text", "books"}
        assert folder != "books_en" or found.count("books") == 39
    tables = [recognised(path) for path in formats.files([shared_data / "finetune"])]
    assert tables.count("a table") >= 6


WIDE = "The rain fell in torrents, except at occasional intervals\n"
FILM, LIST = "A good film.\tgood\n", "word,number\n"
HEADS = [
    ("a.ndjson.gz", "{}\n", "jsonl"),
    ("a", '\ufeff {"text": "Words."}\n', "jsonl"),
    ("a", "<?xml version='1.0'?>\n<mediawiki xmlns=''>", "wikipedia-dump"),
    ("a", "<!-- a dump -->\n<mediawiki>", "wikipedia-dump"),
    ("a", '<doc id="1">\n', "wikiextractor"),
    ("a", "WARC/1.0\r\n", "wet"),
    ("a", "The Project Gutenberg EBook of X\n", "books"),
    *(("a", WIDE * count, format) for count, format in ((20, "books"), (19, "text"))),
    # A table has ten lines. The last line of a file with commas may be cut, and does not count.
    *(("a", FILM * count, found) for count, found in ((10, "a table"), (9, "text"))),
    *(("a", LIST * count, found) for count, found in ((11, "a table"), (10, "text"))),
    ("a", "A,b\n" * 9 + '"' + "x" * 200_000 + '"\n' + "Words.\n" * 20, "text"),  # the library of tables gives up
    # A book has lines of fifty to eighty-five characters; one line in fifty may be longer.
    *(("a", f"{'W' * width}\n" * 20, "books") for width in (50, 85)),
    *(("a", f"{'W' * width}\n" * 20, "text") for width in (49, 86)),
    *(("a", f"{'W' * width}\n" * 99 + f"{'W' * 99}\n", format) for width, format in ((85, "books"), (49, "text"))),
    # An object that ends in its line does not go on.
    ("a", '{"a": [\n1]}', "a JSON object of many lines"),
    *(("a", text, "jsonl") for text in ('{"a": 1}\n{"a": 2}', '{"a": 1}', '{"a": b}\n{"a": c}')),
    # A name tells what is no prose, compressed or not.
    *((f"A{end}", "Words,1\n", "a table") for end in (".csv", ".TSV.gz", ".csv.zst")),
    *((f"a{end}", "<p>Words.</p>", "HTML") for end in (".html", ".HTM.gz")),
    ("a.json.xz", "[1, 2]", "a JSON array"),
    ("a", '[\n  {"text": "One."},\n  {"text": "Two."}\n]\n', "a JSON array"),
    ("a", "<!-- saved -->\n<!DOCTYPE html>\n<html><body><p>Words.</p></body></html>", "HTML"),
    ("a", '<?xml version="1.0"?>\n<rss><item>Words.</item></rss>', "XML"),
    ("a", "id,text,label\n" + '1,"Words, and more.",good\n' * 12, "a table"),
    ("a", "{\\rtf1 Words.}", "RTF"),
]


@pytest.mark.parametrize(("name", "head", "found"), HEADS, ids=[f"{n} {row[2]}" for n, row in enumerate(HEADS)])
def test_the_beginning_of_a_file_tells_its_format_or_that_it_is_no_prose(name: str, head: str, found: str) -> None:
    assert recognised(Path(name), head.encode()) == found


def test_what_is_no_prose_is_read_where_it_is_asked_for(tmp_path):
    (path := tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,label\nWords.,1\n"))
    refused(lambda: read([path]), "a.csv.gz .. a table .. with the format text")
    assert read([path], "text")
