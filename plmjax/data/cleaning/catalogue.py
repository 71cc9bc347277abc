"""Cleaning rules by name, and published sets of rules."""

from collections.abc import Iterable, Sequence

from plmjax.data.cleaning import c4, duplicates, fineweb, gopher, language
from plmjax.data.cleaning.rule import Rule, Settings
from plmjax.errors import UserError, nearest, quoted

RULES: dict[str, Rule] = {
    rule.name: rule for rule in (*c4.RULES, *gopher.RULES, *fineweb.RULES, *language.RULES, *duplicates.RULES)
}
_C4_LINES = (
    "c4_long_words",
    "c4_citations",
    "c4_end_marks",
    "c4_short_lines",
    "c4_lorem_ipsum",
    "c4_javascript",
    "c4_curly_brackets",
    "c4_policies",
    "c4_sentences",
)
_GOPHER = tuple(rule.name for rule in gopher.RULES)
SETS: dict[str, tuple[str, ...]] = {
    # tensorflow/datasets, tensorflow_datasets/text/c4.py: the configuration `en` without its list of bad words.
    "c4": ("c4_long_pages", *_C4_LINES, "c4_duplicate_lines", "c4_sentences", "c4_language"),
    "c4_lines": _C4_LINES,
    "gopher": _GOPHER,
    # huggingface/datatrove, examples/fineweb.py, from the detection of the language on.
    "fineweb": (
        "fineweb_language",
        *_GOPHER,
        "c4_long_words",
        "fineweb_few_words",
        "c4_citations",
        "c4_lorem_ipsum",
        "c4_javascript",
        "c4_curly_brackets",
        "c4_policies",
        "fineweb_sentences",
        "fineweb_line_ends",
        "fineweb_short_lines",
        "fineweb_repeated_lines",
        "fineweb_lists",
        "near_duplicates",
    ),
}
"""Name of a set -> its rules in their order."""


def names(chosen: Iterable[str]) -> tuple[str, ...]:
    """Replace the names of sets by the names of their rules, in the given order.

    Raises:
        UserError: a name is unknown.
    """
    found: list[str] = []
    for name in chosen:
        if name not in RULES and name not in SETS:
            hint = nearest(name, (*RULES, *SETS))
            raise UserError(f"Expected a rule or a set of rules in --clean, found {quoted(name)}; {hint}")
        found += SETS.get(name, (name,))
    return tuple(found)


def check(chosen: Sequence[str], settings: Settings) -> None:
    """Check the names of single rules.

    Raises:
        UserError: the library of a rule is not installed or does not know the language; the bad-words rule has no list,
            or a list is given without that rule.
    """
    if any(RULES[name] in language.RULES for name in chosen):
        language.check(settings)
    if duplicates.NEAR.name in chosen:
        duplicates.rensa()
    if (c4.BAD_WORDS.name in chosen) != bool(settings.bad_words):
        found, advice = ("no list", "give one") if not settings.bad_words else ("a list without it", "name both")
        raise UserError(
            f"Expected a list of words in --bad_words for the rule {c4.BAD_WORDS.name} in --clean, found {found}; "
            f"{advice}."
        )
