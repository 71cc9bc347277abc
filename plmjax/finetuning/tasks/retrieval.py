"""Queries and the passages that answer them: files to train a text encoder on, and files to evaluate it on.

A train file has pairs of a query and a passage. Every pair may have negatives, equally many in each line. The file is
one of

    a table (tsv, csv or jsonl) with named columns
    a folder of BEIR (files/beir.py): every passage that qrels/train.tsv scores above 0 makes a pair with its query
    a .txt file, each line of which is both the query and the passage (Gao et al. 2021, arXiv 2104.08821, section 3)

A validation file is a folder of BEIR, whose queries search its corpus; a table of pairs, whose queries search all
passages of the table; or, if `score` is set, a table of pairs of texts with a similarity score, such as STS-B.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

from plmjax.errors import UserError, quoted
from plmjax.files import storage
from plmjax.files.decimals import decimal
from plmjax.finetuning.files import beir, tables, text_files
from plmjax.finetuning.tasks.task import Examples, FileTask

LINES = ".txt"
TRAIN_SPLIT, VALIDATION_SPLIT, DATA_SPLIT = "train", "dev", "test"
"""Splits of BEIR: for training, for the evaluations of a run, and for `plmjax evaluate --data`."""


@dataclasses.dataclass(frozen=True)
class PairExamples(Examples):
    """Pairs to train on. negatives: passages that do not answer the query of each pair, equally many for all pairs."""

    queries: list[str]
    positives: list[str]
    negatives: list[list[str]]


@dataclasses.dataclass(frozen=True)
class SearchExamples(Examples):
    """Queries that search a corpus.

    lines: lines of the queries in their file.
    query_ids, passage_ids: names of the queries and passages.
    judgements: for each query, passage id -> relevance score, above 0 if the passage answers the query. Other passages
        are not judged.
    """

    query_ids: list[str]
    queries: list[str]
    judgements: list[dict[str, int]]
    passage_ids: list[str]
    passages: list[str]


@dataclasses.dataclass(frozen=True)
class SimilarityExamples(Examples):
    """Pairs of texts, each with a similarity score."""

    pairs: list[tuple[str, str]]
    scores: list[float]


@dataclasses.dataclass(frozen=True)
class Retrieval(FileTask):
    """Files of queries and passages, and the names of their columns."""

    examples: ClassVar[type[Examples]] = PairExamples
    label_settings: ClassVar[tuple[str, ...]] = (
        "query", "positive", "negatives", "score", "columns", "split", "query_prefix", "passage_prefix",
    )  # fmt: skip

    query: str = "query"
    """Column of the query, or of the first of two texts with a score."""
    positive: str = "positive"
    """Column of a passage that answers the query, or of the second of two texts with a score."""
    negatives: tuple[str, ...] = ()
    """Columns of passages that do not answer the query (hard negatives), or the one column that lists them."""
    score: str = ""
    """Column of the similarity of two texts in the validation file; empty for a file of queries and passages."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a tsv or csv whose first row is data already; empty reads them from the first row."""
    split: str = ""
    """Split of a folder of BEIR to evaluate on; by default dev, and test for --data of plmjax evaluate."""
    query_prefix: str = ""
    """Text before every query, such as `query: `."""
    passage_prefix: str = ""
    """Text before every passage, such as `passage: `."""

    @property
    def compares_scores(self) -> bool:
        """True if the validation file has pairs of texts with a score."""
        return bool(self.score) and text_files.suffix(self.validation) in tables.DELIMITERS

    def read(self, split: str) -> Examples:
        """Read the pairs to train on, or the searches or scored pairs to evaluate on."""
        path = self.path(split)
        kind = text_files.suffix(path)
        if split == "train":
            read = _folder_pairs if kind not in (*tables.DELIMITERS, LINES) else self._table_pairs
            examples = (_line_pairs if kind == LINES else read)(path)
            self._check_negatives(path)
        elif kind == LINES:
            raise UserError(
                f"Expected a folder of BEIR or a .tsv, .csv or .jsonl file to evaluate on, found {path}; name one in "
                f"--data.validation."
            )
        elif kind not in tables.DELIMITERS:
            examples = _search(path, self.split or VALIDATION_SPLIT)
        else:
            examples = self._scored_pairs(path) if self.score else _search_table(self._table_pairs(path))
        if not len(examples):
            raise UserError(f"Expected rows in {path}, found none; name another file in --data.{split}.")
        return examples

    def parts(self, path: str, size: int) -> Iterator[Examples]:
        raise UserError(
            f"Expected a run that predicts something for each example of {path}, found one that trains the vectors of "
            f"texts; run plmjax embed."
        )

    def with_validation_file(self, data: str) -> "Retrieval":
        """Return the task with another validation file. The split is test, unless the task sets one."""
        return dataclasses.replace(super().with_validation_file(data), split=self.split or DATA_SPLIT)

    def files_in_both_splits(self) -> list[str]:
        """Return the path that train and validation share, unless they read different splits of a folder."""
        shared = super().files_in_both_splits()
        is_folder = text_files.suffix(self.validation) not in (*tables.DELIMITERS, LINES)
        return [] if is_folder and (self.split or VALIDATION_SPLIT) != TRAIN_SPLIT else shared

    def texts(self, examples: PairExamples) -> Iterator[str]:
        """Yield all queries, passages and negatives."""
        yield from examples.queries
        yield from examples.positives
        for negatives in examples.negatives:
            yield from negatives

    def _check_negatives(self, path: str) -> None:
        """Raise UserError if `negatives` is set and neither file is a table."""
        kinds = {text_files.suffix(file) for file in (self.train, self.validation)}
        if self.negatives and not kinds & tables.DELIMITERS.keys():
            raise UserError(
                f"Expected no --data.negatives for {path}, which has no columns, found {' '.join(self.negatives)}; "
                f"leave it out, or name a .tsv, .csv or .jsonl file."
            )

    def _table_pairs(self, path: str) -> PairExamples:
        """Return the pairs of a table.

        Raises:
            UserError: a line has no query or no passage, or another number of negatives than the first line.
        """
        found = PairExamples(path, [], [], [], [])
        for line, row in tables.rows(path, self.columns):
            where = f"line {line} of {path}"
            negatives = [tables.cell(row, column, "negatives", where) for column in self.negatives]
            negatives = negatives[0] if len(negatives) == 1 and isinstance(negatives[0], list) else negatives
            expected = len(found.negatives[0]) if found.negatives else len(negatives)
            if len(negatives) != expected or (self.negatives and not negatives):
                raise UserError(
                    f"Expected {max(expected, 1)} negatives in {where}, as in the first line, found {len(negatives)}; "
                    f"give every query equally many."
                )
            found.lines.append(line)
            found.queries.append(tables.text(tables.cell(row, self.query, "query", where), self.query, where))
            passage = tables.cell(row, self.positive, "positive", where)
            found.positives.append(tables.text(passage, self.positive, where))
            found.negatives.append([tables.text(one, " ".join(self.negatives), where) for one in negatives])
        return found

    def _scored_pairs(self, path: str) -> SimilarityExamples:
        """Return the scored pairs of a table."""
        found = SimilarityExamples(path, [], [], [])
        for line, row in tables.rows(path, self.columns):
            where = f"line {line} of {path}"
            texts = [
                tables.text(tables.cell(row, column, option, where), column, where)
                for option, column in (("query", self.query), ("positive", self.positive))
            ]
            label = tables.label(tables.cell(row, self.score, "score", where), self.score, where)
            found.lines.append(line)
            found.pairs.append((texts[0], texts[1]))
            found.scores.append(_number(label, where))
        return found


def _number(label: str, where: str) -> float:
    try:
        found = float(decimal(label))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UserError(f"Expected a number for the similarity in {where}, found {quoted(label)}; fix it.")
    return found


def _line_pairs(path: str) -> PairExamples:
    """Return each line of a text as both query and passage. Empty lines are skipped."""
    lines = [(number, text.strip()) for number, text in enumerate(text_files.lines(path), start=1) if text.strip()]
    texts = [text for _, text in lines]
    return PairExamples(path, [number for number, _ in lines], texts, texts, [[] for _ in texts])


def _folder_pairs(path: str) -> PairExamples:
    """Return the pairs of query and passage that the train judgements of a BEIR folder score above 0."""
    found = beir.read(path, TRAIN_SPLIT)
    pairs = [
        (query, passage)
        for query, judged in found.judgements.items()
        for passage, score in judged.items()
        if score > 0 and passage in found.passages
    ]
    if not pairs:
        raise UserError(
            f"Expected passages that answer a query, with a score above 0, in the judgements of {path}, found none; "
            f"train on another folder."
        )
    for query, passage in pairs:
        if not found.passages[passage]:
            raise UserError(
                f"Expected text in the passage {quoted(passage)} of {path}, which answers {quoted(query)}, found none; "
                f"remove its judgement."
            )
    return PairExamples(
        path,
        [found.lines[query] for query, _ in pairs],
        [found.queries[query] for query, _ in pairs],
        [found.passages[passage] for _, passage in pairs],
        [[] for _ in pairs],
    )


def _search(path: str, split: str) -> SearchExamples:
    """Return the queries of a split of a BEIR folder, and its corpus."""
    found = beir.read(path, split)
    return SearchExamples(
        str(storage.path(path)),
        [*found.lines.values()],
        [*found.queries],
        [*found.queries.values()],
        [*found.judgements.values()],
        [*found.passages],
        [*found.passages.values()],
    )


def _search_table(pairs: PairExamples) -> SearchExamples:
    """Return the distinct queries of a table and its distinct passages, which they search.

    They are named by the first line that has them: q7, p7, and n7.1 for the first negative of line 7.
    """
    passages: dict[str, str] = {}
    queries: dict[str, tuple[str, int]] = {}
    judged: dict[str, dict[str, int]] = {}
    rows = zip(pairs.lines, pairs.queries, pairs.positives, pairs.negatives, strict=True)
    for line, query, positive, negatives in rows:
        name = passages.setdefault(positive, f"p{line}")
        queries.setdefault(query, (f"q{line}", line))
        judged.setdefault(query, {})[name] = 1
        for number, negative in enumerate(negatives, start=1):
            passages.setdefault(negative, f"n{line}.{number}")
    return SearchExamples(
        pairs.path,
        [line for _, line in queries.values()],
        [name for name, _ in queries.values()],
        [*queries],
        [*judged.values()],
        [*passages.values()],
        [*passages],
    )
