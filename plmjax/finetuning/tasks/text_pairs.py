"""Pairs of a source text and a target text to generate, such as a translation or a summary.

Two parallel files have one text per line and names that differ in their last suffix, such as train.en and train.de. A
tsv, csv or jsonl file has both texts of a pair in a row.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from plmjax.errors import FROM_0, UserError, beginning, check_ranges, nearest, quoted
from plmjax.files import storage
from plmjax.finetuning.files import tables, text_files
from plmjax.finetuning.tasks.task import Examples, FileTask, Row


@dataclasses.dataclass(frozen=True)
class TextPairExamples(Examples):
    """Examples of text pairs.

    sources: the sources, with the prefix.
    targets: the targets; None in files without targets.
    target_path: the file of the targets, if it is not `path`.
    """

    sources: list[str]
    targets: list[str | None]
    target_path: str = ""

    def target_examples(self) -> "TextPairExamples":
        """Return the same examples located in the file of the targets, for messages."""
        return dataclasses.replace(self, path=self.target_path or self.path)


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """The columns of a file with the two texts of a pair, and how they are read."""

    source: str = "source"
    """Column of the source text; for parallel files, the last suffix of its file, such as en."""
    target: str = "target"
    """Column of the target text; for parallel files, the last suffix of its file, such as de."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a tsv or csv whose first row is data already; empty reads them from the first row."""
    prefix: str = ""
    """Text before every source, such as T5's "translate English to German: "; the files do not hold it."""
    words: tuple[str, ...] = ()
    """LABEL=WORDS, the text to generate for each label of the target's column, such as 0=no 1=yes.

    If empty, the text of the column is used.
    """
    cut_sources: bool = False
    """If true, sources too long for their row are truncated at their end, as for summaries; else they are errors."""
    cut_targets: bool = False
    """If true, only the start of a target that is too long is learned; else it is an error. Metrics take all of it."""


@dataclasses.dataclass(frozen=True)
class TextPairs(PairColumns, FileTask):
    """Parallel files of lines, or rows of a tsv, csv or jsonl file, all plain or with .gz.

    For parallel files, `train` and `validation` name the files of the sources. Cells of a tsv are read unchanged, those
    of a csv may be quoted. Sources to predict from may also be the lines of a .txt file.
    """

    examples: ClassVar[type[Examples]] = TextPairExamples
    contents: ClassVar[str] = "pairs of texts"
    prediction_settings: ClassVar[tuple[str, ...]] = (
        "target_length", "source", "columns", "prefix", "cut_sources", "cut_targets",
    )  # fmt: skip
    label_settings: ClassVar[tuple[str, ...]] = ("target", "words")

    target_length: int = 128
    """Number of tokens in a row of targets, including special ones; 0 where a decoder reads both texts in one row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("data", self, target_length=FROM_0)
        for pair in self.words:
            if not all(pair.partition("=")):
                raise UserError(f"Expected LABEL=WORDS in --data.words, found {quoted(pair)}; write it so.")

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield (line, source, target)."""
        for line, source, target in self._texts(path, labelled):
            target = self._in_words(target, f"line {line} of {self._target_path(path)}")
            yield line, self._add_prefix(source, f"line {line} of {path}"), target

    def source_examples(self, sources: Sequence[str]) -> TextPairExamples:
        """Return examples of sources that come from no file."""
        lines = list(range(1, len(sources) + 1))
        prefixed = [self._add_prefix(source, f"line {line} of the prompts") for line, source in enumerate(sources, 1)]
        return TextPairExamples("the prompts", lines, prefixed, [None] * len(lines))

    def _add_prefix(self, source: str, where: str) -> str:
        if self.prefix and source.startswith(self.prefix.strip()):
            raise UserError(
                f"Expected a source without --data.prefix {quoted(self.prefix)}, which is put before it, found "
                f"{beginning(source)} in {where}; leave one out."
            )
        return self.prefix + source

    def to_examples(self, path: str, rows: list[Row]) -> TextPairExamples:
        """Return rows as the examples of a file of pairs or of sources."""
        lines, sources, targets = map(list, zip(*rows, strict=True))
        return TextPairExamples(path, lines, sources, targets, self._target_path(path))

    def _target_path(self, path: str) -> str:
        """Return the path of the targets: for parallel files, the file beside the sources, otherwise `path`."""
        if text_files.suffix(path) != f".{self.source}":
            return path
        packed = ".gz" if path.endswith(".gz") else ""
        return path.removesuffix(packed).removesuffix(self.source) + self.target + packed

    def texts(self, examples: TextPairExamples) -> Iterator[str]:
        return itertools.chain(examples.sources, examples.targets)

    def _texts(self, path: str, labelled: bool) -> Iterator[tuple[int, str, str | None]]:
        if text_files.suffix(path) == f".{self.source}":
            yield from self._parallel(path, labelled)
        elif not labelled and text_files.suffix(path) == ".txt":
            for line, source in _lines(path):
                yield line, source, None
        elif text_files.suffix(path) not in tables.DELIMITERS:
            raise UserError(
                f"Expected a .tsv, .csv or .jsonl file of pairs, or a file of sources that ends in .{self.source}, "
                f"found {path}; name such a file, or set --data.source to the suffix of the sources."
            )
        else:
            spare = "" if labelled else self.target
            for line, row in tables.rows(path, self.columns, spare=spare):
                where = f"line {line} of {path}"
                source = tables.text(tables.cell(row, self.source, "source", where), self.source, where)
                yield line, source, self._target(row, where) if labelled else None

    def _target(self, row: dict[str, Any], where: str) -> str:
        cell = tables.cell(row, self.target, "target", where)
        return tables.label(cell, self.target, where) if self.words else tables.text(cell, self.target, where)

    def _in_words(self, target: str | None, where: str) -> str | None:
        """Return the text of a target that is a label; other targets unchanged."""
        if target is None or not self.words:
            return target
        words = dict(pair.split("=", 1) for pair in self.words)
        if target not in words:
            raise UserError(
                f"Expected a label of --data.words, found {quoted(target)} in {where}; {nearest(target, words)}"
            )
        return words[target]

    def _parallel(self, path: str, labelled: bool) -> Iterator[tuple[int, str, str | None]]:
        if not labelled:
            for line, source in _lines(path):
                yield line, source, None
            return
        other = self._target_path(path)
        if storage.path(path).is_file() and not storage.path(other).is_file():
            raise UserError(
                f"Expected the targets of {path} in {other}, found no such file; name it so, or set --data.target to "
                f"the suffix of the targets."
            )
        for source, target in itertools.zip_longest(_lines(path), _lines(other)):
            if source is None or target is None:
                longer, shorter = (path, other) if target is None else (other, path)
                line, _ = source or target
                raise UserError(
                    f"Expected as many lines in {shorter} as in {longer}, found {line - 1} and more; line N of one is "
                    f"read with line N of the other, so fix one of them."
                )
            yield source[0], source[1], target[1]


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line."""
    for number, line in enumerate(text_files.lines(path), start=1):
        if not line.strip():
            raise UserError(f"Expected text in line {number} of {path}, found it empty; fix or remove that pair.")
        yield number, line.strip()
