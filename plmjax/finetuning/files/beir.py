"""Folders of BEIR (Thakur et al. 2021, arXiv 2104.08663): a corpus, queries, and judgements of passages for queries.

    corpus.jsonl        {"_id": "4983", "title": "...", "text": "..."}, a passage a line
    queries.jsonl       {"_id": "1", "text": "..."}, a query a line
    qrels/SPLIT.tsv     query-id, corpus-id and score in columns with this header

Each file may be compressed. The text of a passage is its title, a space and its text, as in the `beir` library.
"""

import dataclasses
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.data import text_files
from plmjax.errors import UserError, listed, quoted
from plmjax.files import storage
from plmjax.finetuning.files import tables

log = logging.getLogger(__name__)

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
HEADER = ("query-id", "corpus-id", "score")


@dataclasses.dataclass(frozen=True)
class BeirSplit:
    """A corpus with the queries of one split.

    passages: id -> text. queries: id -> text, of the queries with a judgement, in the order of the judgements.
    lines: id of a query -> its line in the file of queries.
    judgements: id of a query -> id of a passage -> score, above 0 for a passage that answers the query. The corpus may
        lack a passage, as in the published ArguAna (beir-cellar/beir issue 101): no search finds it.
    """

    passages: dict[str, str]
    queries: dict[str, str]
    lines: dict[str, int]
    judgements: dict[str, dict[str, int]]


def read(folder: str, split: str) -> BeirSplit:
    """Read a folder.

    Raises:
        UserError: a file is absent or damaged, the split judges none of the queries, or a judged query is empty.
    """
    place = storage.path(folder)
    if not place.is_dir():
        raise UserError(
            f"Expected a folder of BEIR, found no folder {quoted(str(place), 300)}; check the path, or name a .tsv, "
            f".csv or .jsonl file."
        )
    judgements_path = _judgements(place, split)
    passages = dict(_passages(_file(place, CORPUS)))
    if not passages:
        raise UserError(f"Expected passages in {place / CORPUS}, found none; fetch the folder again.")
    queries_path = _file(place, QUERIES)
    asked = dict(_queries(queries_path))
    judgements: dict[str, dict[str, int]] = {}
    absent = 0
    for line, row in tables.rows(judgements_path):
        where = f"line {line} of {judgements_path}"
        query, passage, score = (_cell(row, name, where) for name in HEADER)
        if not re.fullmatch(r"-?[0-9]{1,9}(\.0+)?", score):
            raise UserError(f"Expected a whole number as the score in {where}, found {quoted(score)}; correct it.")
        absent += query not in asked or passage not in passages
        if query in asked:
            judgements.setdefault(query, {})[passage] = int(float(score))
    if not judgements:
        raise UserError(f"Expected judgements in {judgements_path}, found none of its queries; name another split.")
    if absent:
        log.warning("%d judgements in %s name a query or a passage that %s lacks.", absent, judgements_path, place)
    for query in judgements:
        tables.text(asked[query][1], "text", f"line {asked[query][0]} of {queries_path}")
    queries = {query: asked[query][1] for query in judgements}
    return BeirSplit(passages, queries, {query: asked[query][0] for query in judgements}, judgements)


def _judgements(folder: Path, split: str) -> str:
    """Return the path of a split's judgements."""
    within = folder / JUDGEMENTS
    for name in (f"{split}.tsv", *(f"{split}.tsv{suffix}" for suffix in text_files.COMPRESSED)):
        if (within / name).is_file():
            return str(within / name)
    files = sorted(file.name for file in within.iterdir()) if within.is_dir() else []
    splits = listed(name.partition(".tsv")[0] for name in files if ".tsv" in name)
    raise UserError(
        f"Expected judgements in {within / f'{split}.tsv'}, found splits: {splits}; name one of them in --data.split, "
        f"or take a folder with judgements."
    )


def _file(folder: Path, name: str) -> str:
    """Return the path of a file, which may be compressed."""
    for path in (folder / name, *(folder / f"{name}{suffix}" for suffix in text_files.COMPRESSED)):
        if path.is_file():
            return str(path)
    raise UserError(f"Expected {name} in the folder of BEIR {folder}, found none; fetch the folder again.")


def _passages(path: str) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of every passage."""
    known = set()
    for line, row in tables.rows(path):
        where = f"line {line} of {path}"
        title = _text(row, "title", where) if row.get("title") is not None else ""
        yield _new_id(row, where, known), f"{title} {_text(row, 'text', where)}".strip()


def _queries(path: str) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield (id, (line, text)) of every query."""
    known = set()
    for line, row in tables.rows(path):
        where = f"line {line} of {path}"
        yield _new_id(row, where, known), (line, _text(row, "text", where))


def _new_id(row: dict[str, Any], where: str, known: set[str]) -> str:
    """Return the id of a row, and add it to `known`. Raise UserError if it is in `known` already."""
    found = _cell(row, "_id", where)
    if found in known:
        raise UserError(f"Expected every _id once, found {quoted(found)} again in {where}; correct that line.")
    known.add(found)
    return found


def _cell(row: dict[str, Any], name: str, where: str) -> str:
    """Return a cell that holds an id or a number, as text."""
    if name not in row:
        raise UserError(f"Expected {name} in {where}, found {listed(map(repr, row))}; fetch the folder again.")
    return tables.label(row[name], name, where)


def _text(row: dict[str, Any], name: str, where: str) -> str:
    """Return a text of a row, which may be empty, without the white space around it."""
    found = row.get(name)
    if not isinstance(found, str):
        raise UserError(f"Expected text in {quoted(name)} in {where}, found {quoted(found)}; correct that line.")
    return found.strip()
