"""Raw text to documents and their paragraphs, one file per format.

`inputs` walks files and folders and picks the format; a module per format splits a file into raw documents and removes
its markup; `recognition` tells formats apart; `records` reads the parts of a document with several texts.
"""

from plmjax.data.formats.document import Document
from plmjax.data.formats.inputs import (
    DOCUMENTATION,
    FORMATS,
    TFDS,
    check,
    documents,
    fields_of,
    files,
    prose,
    sources,
    streams_of,
    texts,
)

__all__ = [
    "DOCUMENTATION",
    "FORMATS",
    "TFDS",
    "Document",
    "check",
    "documents",
    "fields_of",
    "files",
    "prose",
    "sources",
    "streams_of",
    "texts",
]
