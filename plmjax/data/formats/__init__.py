"""Reads raw text as documents and their paragraphs, with one module per format.

`inputs` lists files and folders and selects the format. Each format splits a file into raw documents and removes
their markup. `ranges` cuts the input into parts for several processes. `corpora` reads published corpora.
`recognition` recognises formats. `records` reads the parts of a document with several texts.
"""

from plmjax.data.formats.corpora import CORPORA
from plmjax.data.formats.document import Document, Format, nonblank_lines
from plmjax.data.formats.inputs import (
    DOCUMENTATION,
    FORMATS,
    TFDS,
    check,
    declare_format,
    declared,
    documents,
    fields_of,
    files,
    format_of,
    is_exact,
    prose,
    sources,
    streams_of,
    texts,
)
from plmjax.data.formats.ranges import Input, Range

__all__ = [
    "CORPORA",
    "DOCUMENTATION",
    "FORMATS",
    "TFDS",
    "Document",
    "Format",
    "Input",
    "Range",
    "check",
    "declare_format",
    "declared",
    "documents",
    "fields_of",
    "files",
    "format_of",
    "is_exact",
    "nonblank_lines",
    "prose",
    "sources",
    "streams_of",
    "texts",
]
