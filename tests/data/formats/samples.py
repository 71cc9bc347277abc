"""Texts of each format, and the paragraphs that are read from them."""

from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from plmjax.data import formats

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


def read(paths, format="auto"):
    return [(d.format, formats.prose(d)) for d in formats.documents(paths, format=format)]


def write_table(path: Path, table: pyarrow.Table, rows: int | None = None) -> Path:
    """Parquet, a stream of Arrow or a file of it with an index, by the suffix, in batches of so many rows."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=rows)
    else:
        new = pyarrow.ipc.new_file if path.suffix == ".feather" else pyarrow.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def zstandard(content: bytes) -> bytes:
    """In two frames, as tools that compress in parallel write it."""
    half = len(content) // 2
    return b"".join(pyarrow.compress(part, codec="zstd", asbytes=True) for part in (content[:half], content[half:]))


PAGES = ["A page.\nIts second line.", "Eine Seite, natürlich.\n\nNoch eine Zeile."]


def record(kind: str, text: str, length: int | None = None) -> bytes:
    """A record of WARC."""
    content = text.encode()
    fields = f"WARC-Type: {kind}\r\nWARC-Target-URI: http://a.example/\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
    fields += f"Content-Type: text/plain\r\nContent-Length: {len(content) if length is None else length}\r\n"
    return f"WARC/1.0\r\n{fields}\r\n".encode() + content + b"\r\n\r\n"


RECORDS = [record("warcinfo", "Software-Info: ia-web-commons\r\n"), *(record("conversion", page) for page in PAGES)]
