"""Applies the rules of a preparation to a stream of documents, in the order that the user gives.

The rules are divided into stages. A stage has rules on single documents, which run in any process, and ends with at
most one rule that compares documents. Any process computes the keys of that rule. The keys are compared in the order of
reading, so the result does not depend on the number of processes.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plmjax.data import formats, text_files
from plmjax.data.cleaning import catalogue
from plmjax.data.cleaning.repeated import Seen
from plmjax.data.cleaning.report import Effect, Report
from plmjax.data.cleaning.rule import CorpusRule, Dropped, Settings, TextRule
from plmjax.data.formats import records
from plmjax.errors import UserError
from plmjax.files import storage

REPORT = "cleaning.json"
"""File of a dataset with the report."""


class Stage(NamedTuple):
    """Rules on single documents, and the rule that compares documents after them, if there is one.

    start: position of the first rule among all rules.
    """

    start: int
    rules: tuple[TextRule, ...]
    last: CorpusRule | None

    @property
    def end(self) -> int:
        """Position of the rule that compares documents, after the rules on single documents."""
        return self.start + len(self.rules)


class Screened(NamedTuple):
    """The documents of a batch that the rules of a stage keep, with the keys of each for the last rule.

    effects: the effect of each rule. first: numbers of documents and of characters before the rules.
    """

    documents: list[formats.Document]
    keys: list[np.ndarray]
    effects: list[Effect]
    first: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Cleaner:
    """The rules that a user named, and their settings. names: names of single rules."""

    names: tuple[str, ...]
    settings: Settings

    @property
    def description(self) -> dict[str, Any]:
        """The cleaning part of a dataset's description."""
        if not self.names:
            return {}
        words = "\n".join(self.settings.bad_words)
        digest = {"bad_words": hashlib.sha256(words.encode()).hexdigest()} if words else {}
        return {"cleaning": list(self.names), **digest}

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """The rules in stages, each of which ends at a rule that compares documents, or at the last rule."""
        found, rules, start = [], [], 0
        for number, name in enumerate(self.names):
            rule = catalogue.RULES[name]
            if isinstance(rule, TextRule):
                rules.append(rule)
            else:
                found.append(Stage(start, tuple(rules), rule))
                rules, start = [], number + 1
        return [*found, Stage(start, tuple(rules), None)] if rules else found

    def report(self) -> Report:
        """Return an empty report."""
        return Report([(name, catalogue.RULES[name].source) for name in self.names])

    def screen(self, number: int, documents: Iterable[formats.Document]) -> Screened:
        """Apply the rules of a stage to each document of a batch."""
        stage = self.stages[number]
        effects = [Effect() for _ in stage.rules]
        kept, keys, count, characters = [], [], 0, 0
        for document in documents:
            text = document.text if number else _lines(document)
            if not text:
                continue
            count, characters = count + 1, characters + len(text)
            for rule, effect in zip(stage.rules, effects, strict=True):
                text = _record_effect(effect, document.place, text, rule.apply(text, self.settings))
                if not text:
                    break
            else:
                kept.append(formats.Document("text", document.place, text))
                if stage.last:
                    keys.append(stage.last.keys(text, self.settings))
        return Screened(kept, keys, effects, (count, characters))

    def without_repeated(
        self, number: int, documents: Iterable[formats.Document], repeated: Iterable[np.ndarray], effect: Effect
    ) -> Iterator[formats.Document]:
        """Apply the last rule of a stage: yield documents without repeated parts, and count removed text.

        effect: receives the counts. repeated: for each document, bool [parts], true for parts that occurred before.
        """
        without = self.stages[number].last.without
        for document, parts in zip(documents, repeated, strict=True):
            left = without(document.text, parts, self.settings)
            if text := _record_effect(effect, document.place, document.text, left):
                yield document._replace(text=text)

    def texts(self, texts: Iterable[str]) -> Iterator[str]:
        """Apply all rules to texts one after another in this process, and yield the text that is kept."""
        documents = (formats.Document("text", "", text) for text in texts)
        for number in range(len(self.stages)):
            documents = self._stage(number, documents)
        yield from (document.text for document in documents)

    def _stage(self, number: int, documents: Iterator[formats.Document]) -> Iterator[formats.Document]:
        last = self.stages[number].last
        seen = Seen()
        for document in documents:
            kept, keys, _, _ = self.screen(number, [document])
            if last:
                repeated = [seen.find_repeated(found.reshape(-1, last.width)) for found in keys]
                kept = self.without_repeated(number, kept, repeated, Effect())
            yield from kept


def _lines(document: formats.Document) -> str:
    """Return the lines of a document that are not blank, without the white space around them."""
    lines = (line.strip() for paragraph in formats.prose(document) for line in paragraph.splitlines())
    return "\n".join(filter(None, lines))


def _record_effect(effect: Effect, place: str, before: str, after: str | Dropped) -> str:
    """Count the effect of a rule on a document. Return the remaining text, "" if the document is dropped."""
    if isinstance(after, Dropped):
        effect.drop(place, after.reason, before)
        return ""
    if not after.strip():
        effect.drop(place, "no line is left", before)
        return ""
    if after != before:
        effect.change(place, before, after)
    return after


def cleaner(
    chosen: Sequence[str],
    *,
    bad_words: str | os.PathLike = "",
    language: str = "en",
    format: str = "auto",
    parts: records.Parts | None = None,
) -> Cleaner:
    """Return a cleaner that applies rules and sets of rules, in this order, to documents of a format.

    bad_words: a file with a word or a phrase per line, for the rule that needs one.

    Raises:
        UserError: an unknown name, a rule whose library or file is missing, documents that hold several texts, or the
            format of a published corpus, which is read unchanged.
    """
    words = text_files.lines(storage.path(bad_words)) if bad_words else []
    settings = Settings(language, tuple(filter(None, map(str.strip, words))))
    names = catalogue.names(chosen)
    catalogue.check(names, settings)
    if names and (parts or formats.is_exact(format)):
        several = "plmjax prepare --fields" if parts and parts.fields else "--streams"
        found = several if parts else f"the corpus {format}, which is read exactly"
        raise UserError(f"Expected documents of one text for --clean, found {found}; leave one of them out.")
    return Cleaner(names, settings)
