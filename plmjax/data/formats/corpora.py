"""Published corpora: enwik8, text8, WikiText-103 and WikiText-2, with the splits of their papers.

A corpus is read exactly: no sentence is split, no white space is changed and no line is left out. Each split must have
its published size.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from plmjax.data import text_files
from plmjax.errors import UserError, listed
from plmjax.files import storage

SPLITS = ("train", "validation", "test")
TRAINING = ("train", "validation")
"""The splits that a training run reads. Only an evaluation reads the test split."""
Progress = Callable[[int], None]


class Part(NamedTuple):
    """A document of a corpus: its split, its place for messages, and its exact text."""

    split: str
    place: str
    text: str


class Size(NamedTuple):
    """Numbers of bytes, characters and words."""

    bytes: int
    characters: int
    words: int


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A published corpus.

    name: the name in messages.
    sizes: split -> its published size.
    counted: the splits on which the published vocabulary was counted.
    """

    name: str
    sizes: Mapping[str, int]
    counted: tuple[str, ...]

    line_ends_are_words = False
    """True if a line end counts as a word. The token after a document then stands for its last line end."""

    def files(self, inputs: Sequence[Path], splits: Iterable[str]) -> list[Path]:
        """Return the files that hold these splits.

        Raises:
            UserError: a file is absent, or `inputs` is not one path.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `files`.")

    def parts(self, inputs: Sequence[Path], splits: Sequence[str], progress: Progress) -> Iterator[Part]:
        """Yield the documents of these splits, in order.

        Raises:
            UserError: a file is absent or unreadable, or a split has another size.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `parts`.")

    def size(self, text: str) -> Size:
        """Return the size of a document."""
        text += "\n" * self.line_ends_are_words
        words = len(text.split()) + self.line_ends_are_words * text.count("\n")
        return Size(len(text.encode()), len(text), words)


@dataclasses.dataclass(frozen=True)
class ByteCorpus(Corpus):
    """A file that is cut into its splits in order, each split one document (prep_enwik8.py, prep_text8.py).

    sizes: numbers of bytes.

    A multi-byte character at a cut belongs to the split before the cut. An incomplete character at the end of the file
    is left out.
    """

    def files(self, inputs: Sequence[Path], splits: Iterable[str]) -> list[Path]:
        path = _one(inputs, self.name)
        return [_find(path, [self.name], self.name)] if path.is_dir() else [path]

    def parts(self, inputs: Sequence[Path], splits: Sequence[str], progress: Progress) -> Iterator[Part]:
        (path,) = self.files(inputs, splits)
        data = b"".join(text_files.blocks(path, progress))
        total = sum(self.sizes.values())
        if len(data) != total:
            raise UserError(
                f"Expected {total:,} bytes of {self.name} as published, found {len(data):,} in {path}; fetch and "
                "unpack it again, or name the format text to read it as any text."
            )
        ends = [_after_character(data, end) for end in itertools.accumulate(self.sizes.values())]
        for split, (start, stop) in zip(self.sizes, itertools.pairwise([0, *ends]), strict=True):
            if split in splits:
                yield Part(split, f"{path} ({split})", _decode(data[start:stop], path, start))


@dataclasses.dataclass(frozen=True)
class WordCorpus(Corpus):
    """A folder with a file for each split, with spaces between words. Each article is a document.

    sizes: numbers of words and line ends. names: split -> possible names of its file.
    """

    names: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {
            "train": ("wiki.train.tokens", "train.txt"),
            "validation": ("wiki.valid.tokens", "valid.txt"),
            "test": ("wiki.test.tokens", "test.txt"),
        }
    )

    line_ends_are_words = True

    def files(self, inputs: Sequence[Path], splits: Iterable[str]) -> list[Path]:
        folder = _one(inputs, self.name)
        if not folder.is_dir():
            raise UserError(f"Expected the folder of {self.name}, found the file {folder}; name its folder.")
        return [_find(folder, self.names[split], self.name) for split in splits]

    def parts(self, inputs: Sequence[Path], splits: Sequence[str], progress: Progress) -> Iterator[Part]:
        for split, path in zip(splits, self.files(inputs, splits), strict=True):
            words = 0
            for text in _articles(_lines(text_files.characters(path, text_files.blocks(path, progress)))):
                words += self.size(text).words
                yield Part(split, str(path), text)
            if words != self.sizes[split]:
                raise UserError(
                    f"Expected {self.sizes[split]:,} words and line ends in the {split} split of {self.name} as "
                    f"published, found {words:,} in {path}; fetch it again, or name the format text to read it as "
                    "any text."
                )


CORPORA: dict[str, Corpus] = {
    # Mahoney, mattmahoney.net/dc/textdata.html; the cuts of kimiyoung/transformer-xl, prep_enwik8.py and prep_text8.py.
    "enwik8": ByteCorpus("enwik8", {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}, SPLITS),
    "text8": ByteCorpus("text8", {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}, SPLITS),
    # Merity et al. 2017 (arXiv 1609.07843), table 1; the words are those of the released files.
    "wikitext-103": WordCorpus(
        "WikiText-103", {"train": 103_227_021, "validation": 217_646, "test": 245_569}, ("train",)
    ),
    "wikitext-2": WordCorpus("WikiText-2", {"train": 2_088_628, "validation": 217_646, "test": 245_569}, ("train",)),
}
"""The corpora by the name of their format."""

_UNIT = re.compile(r"[^\n]{0,65535}\n|[^\n]{1,65535}(?= |\Z)|[^\n]{65535}")


def units(text: str) -> list[str]:
    """Split a text into lines with their line ends, which add up to the text.

    A line of more than 65,535 characters, such as text8's only line, is cut before a space.
    """
    return _UNIT.findall(text)


def _one(inputs: Sequence[Path], name: str) -> Path:
    if len(inputs) != 1:
        raise UserError(f"Expected one path for {name}, found {len(inputs)}; name its file or folder alone.")
    if not inputs[0].exists():
        raise UserError(f"Expected {name} at {inputs[0]}, found nothing; check the path.")
    return inputs[0]


def _find(folder: Path, names: Iterable[str], corpus: str) -> Path:
    """Return the first file of these names in a folder. It may be compressed."""
    names = list(names)
    for name in names:
        for suffix in ("", *text_files.COMPRESSED):
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    there = listed(sorted(storage.files(folder)), 200)
    raise UserError(f"Expected the file {' or '.join(names)} in {folder}, found {there}; name the folder of {corpus}.")


def _after_character(data: bytes, end: int) -> int:
    """Move a cut at byte `end` to the end of its UTF-8 character, or to the start if the data ends inside it."""
    if end < len(data):
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        return end
    for start in range(len(data) - 1, max(len(data) - 4, -1), -1):
        if data[start] & 0xC0 == 0xC0:  # the first byte of a character; it tells the number of its bytes
            length = 4 if data[start] >= 0xF0 else 3 if data[start] >= 0xE0 else 2
            return start if start + length > len(data) else len(data)
    return len(data)


def _decode(data: bytes, path: Path, offset: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"Expected UTF-8 text in {path}, found byte 0x{data[error.start]:02x} at offset {offset + error.start}, "
            "which is not UTF-8; fetch it again."
        ) from None


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yield every line without its line end, also blank lines."""
    pending = ""
    for block in blocks:
        *complete, pending = (pending + block).split("\n")
        yield from complete
    if pending:
        yield pending


_TITLE = re.compile(r" ?= (?!= )\S(?:.*\S)?(?<! =) = ?")


def _articles(lines: Iterable[str]) -> Iterator[str]:
    """Yield the articles, each from its title to the blank line before the next one, without the last line end.

    A title is a heading of the first level between blank lines. Blank lines before the first title belong to the first
    article.
    """
    article: list[str] = []
    for line in lines:
        if len(article) > 1 and not line.strip() and _TITLE.fullmatch(article[-1]) and not article[-2].strip():
            title = article.pop()
            if any(map(str.strip, article)):
                yield "\n".join(article)
                article = []
            article.append(title)
        article.append(line)
    if article:
        yield "\n".join(article)
