"""Sentences of words with annotations: .conll and .conllu files with a word per line, or .jsonl files."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from plmjax.errors import UserError, listed, quoted
from plmjax.finetuning.files.tables import present_columns, rows, wrong_width
from plmjax.finetuning.files.text_files import lines, suffix

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""Columns of a .conllu file (universaldependencies.org/format)."""
CONLL = ("form", "tag")
"""Columns of a .conll file without column names."""


DOCUMENT = "-DOCSTART-"
"""Word of a line that begins a document, as in the files of CoNLL 2003."""


def sentences(
    path: str, columns: Sequence[str] = (), spare: str = "", documents: bool = False
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Yield the sentences of a .conll or .conllu file, each as a list of (line, column -> cell), one per word.

    Cells of a .conll file are separated by tabs, or by spaces where there are no tabs. Sentences are separated by blank
    lines. A -DOCSTART- line is skipped, or with `documents` is a sentence of that one word. In a .conllu file,
    comments, multiword tokens and empty nodes are skipped. A .jsonl file has one sentence per line, with columns as
    lists of equal length. spare: as for `tables.rows`.

    Raises:
        UserError: another format, damaged text, or a row of another width.
    """
    kind = suffix(path)
    if kind == ".jsonl":
        yield from _listed(rows(path, columns), path)
        return
    if kind not in (".conll", ".conllu"):
        raise UserError(f"Expected a .conll, .conllu or .jsonl file (or one with .gz), found {path}; convert it.")
    names = tuple(columns) or (CONLLU if kind == ".conllu" else CONLL)
    spare = "" if kind == ".conllu" else spare
    sentence: list[tuple[int, dict[str, str]]] = []
    for number, line in enumerate(lines(path), start=1):
        line = line.rstrip("\r\n")
        if not line.strip() or line.startswith(DOCUMENT):
            if sentence:
                yield sentence
            sentence = []
            if documents and line.strip():
                yield [(number, dict.fromkeys(names, DOCUMENT))]
            continue
        if kind == ".conllu" and line.startswith("#"):
            continue
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        names = present_columns(names, len(cells), spare)
        spare = ""
        if len(cells) != len(names):
            raise wrong_width(number, path, names, len(cells))
        if kind == ".conllu" and not re.fullmatch(r"[0-9]+", cells[0]):
            if not re.fullmatch(r"[0-9]+[-.][0-9]+", cells[0]):
                raise UserError(
                    f"Expected the number of a word, such as 3, 3-4 or 3.1, in line {number} of {path}, found "
                    f"{quoted(cells[0])}; fix that line."
                )
            continue
        sentence.append((number, dict(zip(names, cells, strict=True))))
    if sentence:
        yield sentence


def _listed(rows: Iterator[tuple[int, dict[str, Any]]], path: str) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    for number, row in rows:
        lists = {name: value for name, value in row.items() if isinstance(value, list)}
        lengths = {len(value) for value in lists.values()}
        if len(lengths) != 1:
            found = listed(f"{name} of {len(value)}" for name, value in lists.items())
            raise UserError(f"Expected lists of equal length in line {number} of {path}, found {found}; fix it.")
        yield [(number, dict(zip(lists, values, strict=True))) for values in zip(*lists.values(), strict=True)]
