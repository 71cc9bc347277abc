"""FineWeb's rules on the lines of a page, and its variants of C4's rules.

Penedo et al. 2024, "The FineWeb datasets", arXiv 2406.17557, section 3, with the thresholds of the released code:
huggingface/datatrove, src/datatrove/pipeline/filters/.

Deviation: in languages other than English, a line may also end with any other mark that ends a sentence (see c4.py).
Since FineWeb 2 the code has a list of such marks for all languages.
"""

from plmjax.data.cleaning.c4 import few_sentences
from plmjax.data.cleaning.rule import Dropped, Settings, TextRule, duplicates, fraction, is_ended, kept_lines, words

CODE = "huggingface/datatrove, src/datatrove/pipeline/filters"
END_MARKS = (".", "'", '"', "!", "?")
LEAST_ENDED = 0.12
"""A page is dropped if at most this fraction of its lines ends with a mark."""
SHORT_LINE, MOST_SHORT = 30, 0.67
"""Maximum number of characters of a short line, and the fraction of short lines from which on a page is dropped."""
MOST_REPEATED = 0.01
"""Fraction of characters in repeated lines from which on a page is dropped."""
MOST_ENDS = 0.3
"""Maximum number of line ends per word."""
LEAST_WORDS, LEAST_SENTENCES = 3, 5
"""Minimum number of words of a line and of sentences of a page, in the variants of C4's rules."""


def _line_ends(text: str, settings: Settings) -> str | Dropped:
    lines = text.split("\n")
    ended = fraction(sum(is_ended(line, END_MARKS, settings) for line in lines), len(lines))
    return Dropped(f"{ended:.2f} of the lines end with a mark") if ended <= LEAST_ENDED else text


def _short_lines(text: str, settings: Settings) -> str | Dropped:
    lines = text.split("\n")
    short = fraction(sum(len(line) <= SHORT_LINE for line in lines), len(lines))
    return Dropped(f"{short:.2f} of the lines are short") if short >= MOST_SHORT else text


def _repeated_lines(text: str, settings: Settings) -> str | Dropped:
    lines = [line for line in text.split("\n") if line.strip()]
    repeated = fraction(duplicates(lines)[1], len(text.replace("\n", "")))
    return Dropped(f"{repeated:.2f} of the characters in repeated lines") if repeated >= MOST_REPEATED else text


def _lists(text: str, settings: Settings) -> str | Dropped:
    ends = fraction(text.count("\n"), len(words(text)))
    return Dropped(f"{ends:.2f} line ends for each word") if ends > MOST_ENDS else text


def _few_words(text: str, settings: Settings) -> str:
    return kept_lines(text, lambda line: len(line.split()) >= LEAST_WORDS)


def _sentences(text: str, settings: Settings) -> str | Dropped:
    return few_sentences(text, LEAST_SENTENCES, settings)


RULES = (
    TextRule("fineweb_line_ends", f"{CODE}/fineweb_quality_filter.py", _line_ends),
    TextRule("fineweb_short_lines", f"{CODE}/fineweb_quality_filter.py", _short_lines),
    TextRule("fineweb_repeated_lines", f"{CODE}/fineweb_quality_filter.py", _repeated_lines),
    TextRule("fineweb_lists", f"{CODE}/fineweb_quality_filter.py", _lists),
    TextRule("fineweb_few_words", f"{CODE}/c4_filters.py", _few_words),
    TextRule("fineweb_sentences", f"{CODE}/c4_filters.py", _sentences),
)
