"""Counts of the documents and characters that each rule dropped or changed, with examples.

The report also counts the names of special tokens, such as [MASK], that the text has as tokens or as plain text.
"""

import collections
import dataclasses
from typing import Any

from plmjax.errors import UserError, beginning

EXAMPLES, EXAMPLE = 3, 120
"""Number of examples for each rule, and the maximum number of characters of a text in them."""


@dataclasses.dataclass
class Count:
    """Number of documents, and number of characters."""

    documents: int = 0
    characters: int = 0

    def add(self, documents: int, characters: int) -> None:
        self.documents += documents
        self.characters += characters


@dataclasses.dataclass
class Effect:
    """The effect of one rule.

    dropped: dropped documents and their characters.
    changed: documents from which parts were removed, and the characters of these parts.
    examples: (place, reason or "", removed text).
    """

    dropped: Count = dataclasses.field(default_factory=Count)
    changed: Count = dataclasses.field(default_factory=Count)
    examples: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def drop(self, place: str, reason: str, text: str) -> None:
        """Count a document that was dropped."""
        self.dropped.add(1, len(text))
        self._show(place, reason, text)

    def change(self, place: str, before: str, after: str) -> None:
        """Count a document that was changed."""
        self.changed.add(1, len(before) - len(after))
        if len(self.examples) < EXAMPLES:
            kept = set(after.split("\n"))
            self._show(place, "", next((line for line in before.split("\n") if line not in kept), before))

    def add(self, other: "Effect") -> None:
        """Add the effect of the same rule on later documents."""
        for count, more in ((self.dropped, other.dropped), (self.changed, other.changed)):
            count.add(more.documents, more.characters)
        self.examples = [*self.examples, *other.examples][:EXAMPLES]

    def _show(self, place: str, reason: str, text: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append((place, reason, beginning(" ".join(text.split()), EXAMPLE)))


class Report:
    """The effects of the rules of a preparation, in their order.

    rules: (name, source) of each rule.
    """

    def __init__(self, rules: list[tuple[str, str]]) -> None:
        self.read, self.kept, self.tokens = Count(), Count(), 0
        self.effects = [Effect() for _ in rules]
        self.names_read, self.names = collections.Counter[str](), collections.Counter[str]()
        self._rules = rules

    def counts(self) -> dict[str, Any]:
        """Return the counts and examples as JSON data, for `add`."""
        effects = [dataclasses.asdict(effect) for effect in self.effects]
        counts = {"read": dataclasses.asdict(self.read), "kept": dataclasses.asdict(self.kept)}
        return counts | {"effects": effects, "names_read": dict(self.names_read), "names": dict(self.names)}

    def add(self, counts: dict[str, Any]) -> None:
        """Add the counts of the same rules on later documents."""
        for count, more in ((self.read, counts["read"]), (self.kept, counts["kept"])):
            count.add(**more)
        self.names_read.update(counts.get("names_read", {}))  # a unit of an earlier version has none
        self.names.update(counts.get("names", {}))
        for effect, more in zip(self.effects, counts["effects"], strict=True):
            dropped, changed = Count(**more["dropped"]), Count(**more["changed"])
            effect.add(Effect(dropped, changed, [tuple(example) for example in more["examples"]]))

    def to_json(self) -> dict[str, Any]:
        return {
            "read": dataclasses.asdict(self.read),
            "kept": dataclasses.asdict(self.kept) | {"tokens": self.tokens},
            "rules": [
                {
                    "name": name,
                    "source": source,
                    "dropped": self._with_tokens(effect.dropped),
                    "changed": self._with_tokens(effect.changed),
                    "examples": [
                        {"place": place, "reason": reason, "text": text} for place, reason, text in effect.examples
                    ],
                }
                for (name, source), effect in zip(self._rules, self.effects, strict=True)
            ],
        }

    def special_names(self) -> str:
        """Return a line about the names of special tokens in the text; empty if it has none."""
        kinds = (("tokens", self.names_read), ("plain text", self.names))
        parts = [f"{names.total():,} as {kind}: {_most_common(names)}" for kind, names in kinds if names]
        first, *others = parts or [""]
        first = first.replace(" as ", " names of special tokens in the text are read as ", 1)
        return f"special    {'; '.join([first, *others])}" if parts else ""

    def nothing_left(self, names: str) -> UserError:
        """Return the error for a cleaning that drops all documents of the files `names`."""
        counts = [effect.dropped.documents for effect in self.effects]
        rule, _ = self._rules[counts.index(max(counts))]
        return UserError(
            f"Expected documents in {names}, found that --clean dropped all {self.read.documents:,}, {max(counts):,} "
            f"of them by {rule}; name fewer rules."
        )

    def _with_tokens(self, count: Count) -> dict[str, int]:
        return dataclasses.asdict(count) | {"about_tokens": self._tokens(count)}

    def _tokens(self, count: Count) -> int:
        """Estimate the number of tokens of a text from the tokens per character of the kept text."""
        return round(count.characters * self.tokens / self.kept.characters) if self.kept.characters else 0

    def __str__(self) -> str:
        """Return a table with a line for each rule, and the examples below it."""
        read, kept = self.read, self.kept
        lines = [
            f"cleaning   kept {kept.documents:,} of {read.documents:,} documents, {kept.characters:,} of "
            f"{read.characters:,} characters"
        ]
        for (name, _), effect in zip(self._rules, self.effects, strict=True):
            parts = [
                f"{word} {count.documents:,} documents ({count.characters:,} characters, about "
                f"{self._tokens(count):,} tokens)"
                for word, count in (("dropped", effect.dropped), ("changed", effect.changed))
                if count.documents
            ]
            lines.append(f"  {name:<22} {', '.join(parts) or 'no effect'}")
            lines += [
                f"    {place}: {f'{reason}: ' if reason else ''}{text}" for place, reason, text in effect.examples
            ]
        return "\n".join(lines)


def _most_common(names: collections.Counter[str]) -> str:
    """Return the most frequent names with their counts."""
    found = ", ".join(f"{name} {count:,}" for name, count in names.most_common(EXAMPLES))
    return f"{found}, ..." if len(names) > EXAMPLES else found
