"""Reads files and folders as raw documents, and raw documents as paragraphs, in every format.

`documents` runs in one process and only splits a stream into raw documents. It needs a few megabytes for any size of
the input. `prose` converts one raw document to paragraphs and can run in any process. Files of every format may be
compressed (see `text_files`).
"""

import hashlib
import heapq
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plmjax.contracts.declared_names import DECLARED, declare_name
from plmjax.data import text_files
from plmjax.data.formats import arrow, corpora, documentation, folders, parquet, recognition, records, tfds, tsv
from plmjax.data.formats.books import BOOKS
from plmjax.data.formats.corpora import CORPORA
from plmjax.data.formats.document import Document, Format, nonblank_lines
from plmjax.data.formats.jsonl import JSONL
from plmjax.data.formats.lines import LINES
from plmjax.data.formats.text import TEXT
from plmjax.data.formats.wet import WET
from plmjax.data.formats.wikiextractor import WIKIEXTRACTOR
from plmjax.data.formats.wikipedia_dump import WIKIPEDIA_DUMP
from plmjax.errors import UserError, nearest, quoted
from plmjax.files import storage

DOCUMENTATION = "documentation"
"""Name of the embedded corpus, which takes no files."""
TFDS = "tfds:"
"""Prefix of the name of a TFDS dataset."""
FORMATS = (
    "auto",
    "text",
    "lines",
    "wikipedia-dump",
    "wikiextractor",
    "books",
    "jsonl",
    "tsv",
    "parquet",
    "arrow",
    "wet",
    *CORPORA,
    DOCUMENTATION,
)
"""The formats of plmjax that `documents` reads, besides tfds:NAME."""
_BY_NAME: dict[str, Format] = {
    "text": TEXT,
    "lines": LINES,
    "wikipedia-dump": WIKIPEDIA_DUMP,
    "wikiextractor": WIKIEXTRACTOR,
    "books": BOOKS,
    "jsonl": JSONL,
    "wet": WET,
}
"""The formats of raw documents, except published corpora. Tables give documents of these formats, such as `jsonl`."""
_TABLES = {"parquet": parquet, "arrow": arrow}
"""The formats of files that are not read as a stream of bytes."""


def declare_format(name: str, format: Format) -> Format:
    """Add a format that `--format` and `data.format` can name, and return it. `auto` does not recognise it.

    format: its functions must be defined in a module that worker processes can import.

    Raises:
        UserError: plmjax has a format of this name.
    """
    return declare_name(_BY_NAME, name, format, kind="a format of text", taken=FORMATS)


def declared(format: str) -> Format | None:
    """Return a format that a user's file declared, or None for other formats."""
    return _BY_NAME[format] if format in DECLARED and format in _BY_NAME else None


def sources(inputs: Sequence[str | os.PathLike], format: str, split: str = "") -> list[dict]:
    """Return the files that `documents` would read: path, bytes on disk and digest of every file.

    The digest is the SHA-256 of a local file. For a file in a bucket it is the checksum that the bucket stores, so the
    file is not read. A TFDS dataset has one entry, without a digest.

    Raises:
        UserError: an unknown format, or inputs that are missing or do not belong to the format.
    """
    if format == DOCUMENTATION:
        return documentation.sources()
    if format.startswith(TFDS):
        return [{"path": format, "bytes": 0, "data": [os.fspath(path) for path in inputs]}]
    found = map(storage.file, files(inputs, format, split))
    return [{"path": str(file.path), "bytes": file.size, "digest": file.digest()} for file in found]


def files(inputs: Sequence[str | os.PathLike], format: str = "auto", split: str = "") -> list[Path]:
    """Return the files of `inputs`, sorted within each folder, without files that have no text (see `folders`).

    For a published corpus these are the files of `split`, or of the training and validation splits if it is empty.

    Raises:
        UserError: a path does not exist or is not UTF-8, a folder has no files, there is no path, or the format is
            unknown; or a published corpus lacks a file.
    """
    check(format)
    if not inputs:
        raise UserError("Expected files or folders of text, found none named; give at least one.")
    if corpus := CORPORA.get(format):
        return corpus.files([storage.path(path) for path in inputs], [split] if split else corpora.TRAINING)
    found = []
    for path in map(storage.path, inputs):
        if path.is_dir():
            found += folders.files(path)
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"Expected a file or folder of text at {path}, found nothing; check the path.")
    for path in found:
        # Python reads bytes that are not UTF-8 as halves of surrogate pairs, which the JSON of a dataset cannot hold.
        if re.search("[\ud800-\udfff]", os.fspath(path)):
            raise UserError(f"Expected names of files in UTF-8, found {quoted(os.fspath(path), 300)}; rename it.")
    return found


def check(format: str) -> None:
    """Raise UserError for an unknown format."""
    if format not in FORMATS and format not in _BY_NAME and not format.startswith(TFDS):
        raise UserError(
            f"Expected a format of raw text, found {quoted(format)}; "
            f"{nearest(format, dict.fromkeys((*FORMATS, *_BY_NAME, 'tfds:NAME')))}"
        )


def documents(
    inputs: Sequence[str | os.PathLike],
    *,
    format: str = "auto",
    progress: Callable[[int], None] = lambda count: None,
    text_key: str = "text",
    parts: records.Parts | None = None,
    split: str = "",
) -> Iterator[Document]:
    """Yield the raw documents of `inputs` in order.

    progress: function that is called with the bytes read from disk since its last call.
    text_key: key of the text in a JSON object, a row of a table or an example of TFDS.
    parts: parts of each record to read instead of `text_key`; a record is then a document with the format "jsonl".
    split: the only split of a published corpus to read. If it is empty, the training and validation splits are read,
        and every document has the name of its split.

    Raises:
        UserError: an input is missing, empty, binary, truncated, not UTF-8 or not of its format.
    """
    if format in CORPORA:
        yield from _corpus_documents(
            inputs, format, [split] if split else corpora.TRAINING, parts=parts, progress=progress
        )
        return
    for source in _sources(inputs, format, text_key, parts=parts, progress=progress):
        yield from source


def _sources(
    inputs: Sequence[str | os.PathLike],
    format: str,
    key: str,
    *,
    parts: records.Parts | None,
    progress: Callable[[int], None],
) -> list[Iterator[Document]]:
    """Return iterators over the documents of each file."""
    if format == DOCUMENTATION:
        return [(Document("text", f"documentation of {name}", text) for name, text in documentation.documents())]
    if format.startswith(TFDS):
        return [tfds.documents(format.removeprefix(TFDS), inputs, key, parts=parts)]
    return [file_documents(path, format, key, parts=parts, progress=progress) for path in files(inputs, format)]


def is_exact(format: str) -> bool:
    """Return whether the text of a format is used unchanged, with its white space, and is not split into sentences."""
    return format in CORPORA


def prose(document: Document) -> list[str]:
    """Return the paragraphs of a raw document without markup and boilerplate; empty if it has no running text.

    For an exact format, these are its lines with their line ends.
    """
    if is_exact(document.format):
        return corpora.units(document.text)
    return _BY_NAME[document.format].prose(document)


def streams_of(document: Document, parts: records.Parts) -> dict[str, list[str]]:
    """Return a dict from stream to its paragraphs, for a document that was read with these parts.

    Raises:
        UserError: the record lacks one of the texts.
    """
    record = records.parse(document.text, document.place)
    return {
        stream: nonblank_lines(document._replace(text=records.text(record, key, document.place, "--streams")))
        for stream, key in parts.streams.items()
    }


def fields_of(document: Document, parts: records.Parts) -> list[float]:
    """Return the numbers of a document that was read with these parts.

    Raises:
        UserError: the record lacks one of them.
    """
    record = records.parse(document.text, document.place)
    return [records.number(record, key, document.place) for key in parts.fields]


def texts(
    inputs: Sequence[str | os.PathLike],
    *,
    format: str = "auto",
    limit_bytes: int | None = 1 << 26,
    text_key: str = "text",
    parts: records.Parts | None = None,
) -> Iterator[str]:
    """Yield cleaned documents to train a tokenizer on, in order: at most about `limit_bytes` of UTF-8.

    A larger text is sampled: it is read completely, and the documents whose raw text has the smallest hashes are used.
    So each document is equally likely, wherever it is, and the same text gives the same sample. If `limit_bytes` is
    None, all documents are yielded as they are read.

    For a published corpus these are the documents of the splits on which its vocabulary was counted.
    """
    if format in CORPORA:
        found = _corpus_documents(inputs, format, CORPORA[format].counted, parts=parts, progress=lambda count: None)
    else:
        found = itertools.chain.from_iterable(
            _sources(inputs, format, text_key, parts=parts, progress=lambda count: None)
        )
    between = "" if is_exact(format) else "\n"
    sample: list[tuple[int, int, str, int]] = []  # a heap of (-hash, place in the order, text, bytes)
    total = 0
    for place, document in enumerate(found):
        rank = -_hash(document.text) if limit_bytes else 0
        if limit_bytes and total >= limit_bytes and rank < sample[0][0]:
            continue
        paragraphs = streams_of(document, parts).values() if parts else [prose(document)]
        text = between.join(itertools.chain.from_iterable(paragraphs))
        if not text:
            continue
        if not limit_bytes:
            yield text
            continue
        heapq.heappush(sample, (rank, place, text, size := len(text.encode())))
        total += size
        while total - sample[0][3] >= limit_bytes:
            total -= heapq.heappop(sample)[3]
    for _, _, text, _ in sorted(sample, key=lambda entry: entry[1]):
        yield text


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _corpus_documents(
    inputs: Sequence[str | os.PathLike],
    format: str,
    splits: Sequence[str],
    *,
    parts: records.Parts | None,
    progress: Callable[[int], None],
) -> Iterator[Document]:
    """Yield the documents of these splits of a published corpus. If there are several, documents name their split."""
    if parts:
        raise _no_records(format, format)
    for found in CORPORA[format].parts([storage.path(path) for path in inputs], splits, progress):
        yield Document(format, found.place, found.text, split=found.split if len(splits) > 1 else "")


def _no_records(place: object, format: str) -> UserError:
    return UserError(
        f"Expected records with named parts in {place} for --streams, found the format {format}; convert it to one "
        f"of {', '.join(records.FORMATS)}, or name its --format."
    )


def format_of(path: Path, format: str = "auto") -> str:
    """Return the format of a file, recognised by its beginning if `format` is "auto"."""
    if format != "auto":
        return format
    table = next((name for name, table in _TABLES.items() if table.recognise(path)), None)
    return table or recognition.recognise(path, next(text_files.blocks(path)))


def boundaries(path: Path, format: str) -> tuple[re.Pattern[bytes], ...]:
    """Return the boundaries of documents in a file (see `Format`); empty if it can only be read from its beginning."""
    if text_files.is_compressed(path):
        return ()
    format = format_of(path, format)
    return _BY_NAME[format].boundaries if format in _BY_NAME else ()


def file_documents(
    path: Path,
    format: str,
    key: str,
    *,
    parts: records.Parts | None,
    progress: Callable[[int], None],
    bounds: tuple[int, int | None] | None = None,
) -> Iterator[Document]:
    """Yield the raw documents of a file.

    bounds: (first byte, byte after the last one or None for the end of the file), both at boundaries of documents;
        None reads the whole file.
    """
    format = format_of(path, format)
    if format in _TABLES:
        yield from _TABLES[format].documents(path, key, parts, progress)
        return
    if parts and format not in records.FORMATS:
        raise _no_records(path, format)
    if bounds is None:
        blocks = text_files.blocks(path, progress)
    else:
        begin, end = bounds[0], storage.size(path) if bounds[1] is None else bounds[1]
        blocks = text_files.range_blocks(path, begin, end, progress)
        path = path.with_name(f"{path.name} (from byte {begin:,})") if begin else path
    if format == "tsv":
        found, format = tsv.split(path, blocks, parts.keys if parts else (key,)), "jsonl"
    else:
        found = _BY_NAME[format].split(path, blocks)
    for place, text in found:
        yield Document(format, place, text, key)
