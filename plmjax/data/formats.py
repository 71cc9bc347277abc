"""Files of raw text to documents, in two halves.

`documents` runs in one process and only cuts a stream into raw documents, holding a few megabytes whatever the size
of the input; `prose` turns one raw document into paragraphs and can run anywhere. Every format may be compressed
(see `reading`).
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from plmjax import json_text, storage
from plmjax.data import books, documentation, reading, recognition, records, tensorflow_runtime, wikitext
from plmjax.errors import UserError, listed, nearest, quoted

DOCUMENTATION = "documentation"
"""The embedded corpus, which takes no files."""
TFDS = "tfds:"
"""What stands before the name of a dataset of TFDS."""
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
    DOCUMENTATION,
)
"""What `documents` reads, beside tfds:NAME."""
LONGEST_DOCUMENT = 1 << 22
"""Characters of a document; a longer text becomes several documents, cut where a line or a word ends."""
LONGEST_RECORD = 1 << 26
"""Characters of a JSON line or a wiki page, which cannot be cut; what is longer is an error."""
UNMARKED = 1000
"""Line ends from which on a file of the format `text` without a blank line (in its first `LONGEST_DOCUMENT` characters)
is no document but many whose borders are not marked: one sentence per line, or one paragraph. Nothing could be held out
of a single document, and no second one be drawn for a sentence pair."""
UNMARKED_LINES = 50
"""Lines of a document of such a file."""


class Document(NamedTuple):
    """A raw document: its format, where it stands (for messages), its text as read, and the text's key in a record.

    With the format "jsonl" the text is a record (see `records`), as a JSON object.
    """

    format: str
    place: str
    text: str
    key: str = "text"


def sources(inputs: Sequence[str | os.PathLike], format: str) -> list[dict]:
    """What `documents` would read: path, bytes on disk and SHA-256 of every file.

    Raises:
      UserError: an unknown format, or inputs that are missing or do not go with it.
    """
    if format == DOCUMENTATION:
        return documentation.sources()
    if format.startswith(TFDS):
        return [{"path": format, "bytes": 0, "data": [os.fspath(path) for path in inputs]}]
    found = []
    for path in files(inputs, format):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found.append({"path": str(path), "bytes": storage.size(path), "sha256": digest})
    return found


def files(inputs: Sequence[str | os.PathLike], format: str = "auto") -> list[Path]:
    """The files of `inputs`, folders walked in sorted order, hidden files left out.

    Raises:
      UserError: a path that is not there or no UTF-8, a folder without files, no path at all, or an unknown format.
    """
    check(format)
    if not inputs:
        raise UserError("Expected files or folders of text, found none named; give at least one.")
    found = []
    for path in map(storage.path, inputs):
        if path.is_dir():
            names = [name for name in storage.files(path) if not any(part.startswith(".") for part in name.split("/"))]
            inside = sorted(path / name for name in names)
            if not inside:
                raise UserError(f"Expected files of text in the folder {path}, found none; check the path.")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"Expected a file or folder of text at {path}, found nothing; check the path.")
    for path in found:
        # Other bytes of a name are halves of surrogate pairs in Python, which the JSON of a dataset cannot hold.
        if re.search("[\ud800-\udfff]", os.fspath(path)):
            raise UserError(f"Expected names of files in UTF-8, found {quoted(os.fspath(path), 300)}; rename it.")
    return found


def check(format: str) -> None:
    """Raises UserError for a format that nothing reads."""
    if format not in FORMATS and not format.startswith(TFDS):
        raise UserError(
            f"Expected a format of raw text, found {quoted(format)}; {nearest(format, (*FORMATS, 'tfds:NAME'))}"
        )


def documents(
    inputs: Sequence[str | os.PathLike],
    format: str = "auto",
    progress: Callable[[int], None] = lambda count: None,
    text_key: str = "text",
    parts: records.Parts | None = None,
) -> Iterator[Document]:
    """Raw documents of `inputs` in order; `progress` is called with the bytes read from disk since its last call.

    text_key: what holds the text in a JSON object, a row of a table or an example of TFDS.
    parts: read these of every record instead, as a document with the format "jsonl".

    Raises:
      UserError: an input that is missing, empty, binary, truncated, not UTF-8 or not of its format.
    """
    for source in _sources(inputs, format, text_key, parts, progress):
        yield from source


def _sources(
    inputs: Sequence[str | os.PathLike],
    format: str,
    key: str,
    parts: records.Parts | None,
    progress: Callable[[int], None],
) -> list[Iterator[Document]]:
    """The documents of each file."""
    if format == DOCUMENTATION:
        return [(Document("text", f"documentation of {name}", text) for name, text in documentation.documents())]
    if format.startswith(TFDS):
        return [_tfds(format.removeprefix(TFDS), inputs, key, parts)]
    return [_file_documents(path, format, key, parts, progress) for path in files(inputs, format)]


def prose(document: Document) -> list[str]:
    """The paragraphs of a raw document, markup and boilerplate removed; empty when it has no running text."""
    return _PROSE[document.format](document)


def streams_of(document: Document, parts: records.Parts) -> dict[str, list[str]]:
    """Stream -> its paragraphs, of a document that was read by these parts.

    Raises:
      UserError: a record without one of the texts.
    """
    record = records.parse(document.text, document.place)
    return {
        stream: _text_prose(document._replace(text=records.text(record, key, document.place, "--streams")))
        for stream, key in parts.streams.items()
    }


def fields_of(document: Document, parts: records.Parts) -> list[float]:
    """The numbers of a document that was read by these parts.

    Raises:
      UserError: a record without one of them.
    """
    record = records.parse(document.text, document.place)
    return [records.number(record, key, document.place) for key in parts.fields]


def texts(
    inputs: Sequence[str | os.PathLike],
    format: str = "auto",
    limit_bytes: int = 1 << 26,
    text_key: str = "text",
    parts: records.Parts | None = None,
) -> Iterator[str]:
    """Cleaned documents, about `limit_bytes` of UTF-8 drawn evenly from the files, to train a tokenizer on."""
    streams = _sources(inputs, format, text_key, parts, lambda count: None)
    for index, stream in enumerate(streams):
        quota = limit_bytes // (len(streams) - index)
        for document in stream:
            if quota <= 0:
                break
            paragraphs = streams_of(document, parts).values() if parts else [prose(document)]
            text = "\n".join(itertools.chain.from_iterable(paragraphs))
            size = len(text.encode())
            quota, limit_bytes = quota - size, limit_bytes - size
            if text:
                yield text


# ---------------------------------------------------------------------------------------------------- reading


def _file_documents(
    path: Path, format: str, key: str, parts: records.Parts | None, progress: Callable[[int], None]
) -> Iterator[Document]:
    if format == "parquet" or (format == "auto" and _is_parquet(path)):
        yield from _parquet(path, key, parts, progress)
        return
    blocks = reading.blocks(path, progress)
    first = next(blocks)
    if format == "auto":
        format = recognition.recognise(path, first)
    if parts and format not in records.FORMATS:
        raise UserError(
            f"Expected records with named parts in {path} for --streams, found the format {format}; convert it to one "
            f"of {', '.join(records.FORMATS)}, or name its --format."
        )
    blocks = itertools.chain([first], blocks)
    if format == "wikipedia-dump":
        found = wikitext.pages(path, blocks, LONGEST_RECORD)
    elif format == "tsv":
        lines = _lines(path, reading.characters(path, blocks))
        found, format = records.table(path, lines, parts.keys if parts else (key,)), "jsonl"
    else:
        found = _CUT[format](path, reading.characters(path, blocks))
    for place, text in found:
        yield Document(format, place, text, key)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _parquet(path: Path, key: str, parts: records.Parts | None, progress: Callable[[int], None]) -> Iterator[Document]:
    """A column of a Parquet file, one document per row; rows without a value are left out. Or rows as records."""
    import pyarrow
    from pyarrow import parquet

    done, size = 0, storage.size(path)
    try:
        with path.open("rb") as raw, parquet.ParquetFile(raw) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            strings = (pyarrow.string(), pyarrow.large_string())
            for name in parts.streams.values() if parts else (key,):
                if name not in schema.names or schema.field(name).type not in strings:
                    option = "--streams" if parts else "--text_key"
                    raise UserError(
                        f"Expected a column of text named {quoted(name)} in {path}, found the columns "
                        f"{listed(schema.names)}; name the one that is meant in {option}."
                    )
            columns = list(parts.keys) if parts else [key]
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for number, row in enumerate(batch.to_pylist(), start=done + 1):
                    if parts:
                        row |= {name: row[name] or "" for name in parts.streams.values()}
                        yield Document("jsonl", f"{path} row {number}", json.dumps(row, ensure_ascii=False))
                        continue
                    for _, part in _whole(path, [row[key] or ""]):
                        yield Document("text", f"{path} row {number}", part)
                progress(size * (done + len(batch)) // rows - size * done // rows)
                done += len(batch)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"Expected a whole Parquet file in {path}, found one that cannot be read "
            f"({json_text.reason(error)}); copy it again or check the format."
        ) from error


# ------------------------------------------------------------------------------------------------------ cutting


def _cut(text: str) -> tuple[str, str]:
    """Splits a text that is too long for a document at the last paragraph, line or word that ends within the limit."""
    for end in ("\n\n", "\n", " "):
        at = text.rfind(end, LONGEST_DOCUMENT // 2, LONGEST_DOCUMENT)
        if at >= 0:
            return text[:at], text[at + len(end) :]
    return text[:LONGEST_DOCUMENT], text[LONGEST_DOCUMENT:]


_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def _blocks_of_lines(blocks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """(text, whether a blank line ends it) of the text between blank lines; a long text in several parts."""
    pending = ""
    for block in blocks:
        *complete, pending = _BLANK_LINES.split(pending + block)
        for text in complete:
            while len(text) > LONGEST_DOCUMENT:
                part, text = _cut(text)
                yield part, False
            yield text, True
        while len(pending) > LONGEST_DOCUMENT:
            part, pending = _cut(pending)
            yield part, False
    yield pending, False


def _blank_separated(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What stands between blank lines; every `UNMARKED_LINES` lines of a long file that has none (see `UNMARKED`)."""
    parts = ((text, ended) for text, ended in _blocks_of_lines(blocks) if text and not text.isspace())
    first, ended = next(parts, ("", True))
    second = next(parts, None)
    marked = (second is not None and ended) or first.count("\n") < UNMARKED
    for text, _ in itertools.chain([(first, ended)], [second] if second else [], parts):
        if marked:
            yield str(path), text
        else:
            lines = text.split("\n")
            for start in range(0, len(lines), UNMARKED_LINES):
                yield str(path), "\n".join(lines[start : start + UNMARKED_LINES])


def _whole(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    pending = ""
    for block in blocks:
        pending += block
        while len(pending) > LONGEST_DOCUMENT:
            part, pending = _cut(pending)
            yield str(path), part
    yield str(path), pending


def _tagged(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    pending, opened = "", False
    for block in blocks:
        *complete, pending = (pending + block).split("</doc>")
        for text in complete:
            if not opened and not text.lstrip().startswith("<doc "):
                raise _not_wikiextractor(path, text)
            opened = False
            yield str(path), text
        while len(pending) > LONGEST_DOCUMENT:
            if not opened and not pending.lstrip().startswith("<doc "):
                raise _not_wikiextractor(path, pending)
            opened = True
            part, pending = _cut(pending)
            yield str(path), part
    if opened or pending.strip():
        if not opened and not pending.lstrip().startswith("<doc "):
            raise _not_wikiextractor(path, pending)
        raise UserError(f"Expected every <doc> of {path} to be closed, found the last one open: the file is truncated.")


def _not_wikiextractor(path: Path, text: str) -> UserError:
    return UserError(
        f"Expected WikiExtractor's <doc ...> in {path}, found {quoted(text.strip())}; check --format or leave it auto."
    )


def _lines(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    pending, number = "", 0
    for block in blocks:
        *complete, pending = (pending + block).split("\n")
        for line in complete:
            number += 1
            if line and not line.isspace():
                yield f"{path} line {number}", line
        if len(pending) > LONGEST_RECORD:
            raise UserError(
                f"Expected lines of at most {LONGEST_RECORD} characters in {path}, found line {number + 1} longer; "
                "break it up."
            )
    if pending and not pending.isspace():
        yield f"{path} line {number + 1}", pending


def _cut_lines(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    for place, line in _lines(path, blocks):
        while len(line) > LONGEST_DOCUMENT:
            part, line = _cut(line)
            yield place, part
        yield place, line


def _tfds(name: str, inputs: Sequence[str | os.PathLike], key: str, parts: records.Parts | None) -> Iterator[Document]:
    """Examples of a TFDS dataset; an input names the folder of its data."""
    tfds = tensorflow_runtime.tensorflow_datasets()

    if len(inputs) > 1:
        raise UserError(f"Expected at most one --input with tfds:{name}, the folder of its data, found {len(inputs)}.")
    try:
        builder = tfds.builder(name, data_dir=os.fspath(inputs[0]) if inputs else None)
        builder.download_and_prepare()
    except Exception as error:  # unknown name, no network, no licence, ...: TFDS has a class for each
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"Expected TFDS to provide the dataset {quoted(name)}, found that it cannot: {reason}"
        ) from error
    features = [_text_feature(name, builder.info.features, one) for one in (parts.streams.values() if parts else [key])]
    for split in builder.info.splits:
        for index, example in enumerate(tfds.as_numpy(builder.as_dataset(split=split))):
            try:
                found = {feature: example[feature].decode("utf-8") for feature in features}
            except UnicodeDecodeError as error:
                raise UserError(
                    f"Expected UTF-8 text in example {index} of {name}/{split}, found a byte that is not at "
                    f"offset {error.start}; prepare another copy of it."
                ) from error
            place = f"tfds:{name}/{split} example {index}"
            if parts:
                found |= {field: example[field].item() for field in parts.fields if field in example}
                yield Document("jsonl", place, json.dumps(found, ensure_ascii=False))
                continue
            for _, part in _whole(Path(), found.values()):
                yield Document("text", place, part)


def _text_feature(name: str, features, key: str) -> str:
    """The feature of a dataset that holds its documents: the one named, one with a usual name, else its only text."""
    tfds = tensorflow_runtime.tensorflow_datasets()

    # Sorted: a dataset read from disk lists its features in another order in every process.
    strings = sorted(key for key, value in features.items() if isinstance(value, tfds.features.Text))
    usual = [name for name in ("text", "article", "document", "content") if name in strings]
    if key in strings:
        return key
    if key == "text" and (usual or len(strings) == 1):
        return (usual or strings)[0]
    raise UserError(
        f"Expected one feature of text named {quoted(key)} in the TFDS dataset {quoted(name)}, found "
        f"{listed(strings)}; name the one that is meant in --text_key."
    )


# ----------------------------------------------------------------------------------------------------- cleaning


def _text_prose(document: Document) -> list[str]:
    return [line for line in document.text.split("\n") if line and not line.isspace()]


def _wikiextractor_prose(document: Document) -> list[str]:
    import html

    title = None
    lines = document.text.lstrip().split("\n")
    if lines[0].startswith("<doc "):
        match = re.search(r'title="([^"]*)"', lines[0])
        title = html.unescape(match[1]) if match else None
        lines = lines[1:]
    lines = [line for line in map(html.unescape, lines) if line and not line.isspace()]
    return lines[1:] if lines and lines[0].strip() == title else lines


def _jsonl_prose(document: Document) -> list[str]:
    record = records.parse(document.text, document.place)
    return _text_prose(document._replace(text=records.text(record, document.key, document.place, "--text_key")))


_CUT: dict[str, Callable[[Path, Iterable[str]], Iterator[tuple[str, str]]]] = {
    "text": _blank_separated,
    "lines": _cut_lines,
    "books": _whole,
    "wikiextractor": _tagged,
    "jsonl": _lines,
}
_PROSE: dict[str, Callable[[Document], list[str]]] = {
    "text": _text_prose,
    "lines": _text_prose,
    "books": lambda document: books.prose(document.text),
    "wikiextractor": _wikiextractor_prose,
    "wikipedia-dump": lambda document: wikitext.prose(document.text),
    "jsonl": _jsonl_prose,
}
