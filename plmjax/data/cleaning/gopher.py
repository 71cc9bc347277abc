"""Gopher's rules on the quality and the repetitions of a page, as FineWeb applies them.

Rae et al. 2021, "Scaling language models", arXiv 2112.11446, appendix A.1.1 and table A1, as implemented in
huggingface/datatrove, src/datatrove/pipeline/filters/. Gopher's rules on repeated paragraphs are left out: blank lines,
which separate paragraphs, are removed when a document is read.
"""

from collections import Counter

from plmjax.data.cleaning.rule import Dropped, Settings, TextRule, duplicates, fraction, words

CODE = "huggingface/datatrove, src/datatrove/pipeline/filters"
LEAST_WORDS, MOST_WORDS = 50, 100_000
SHORTEST_WORD, LONGEST_WORD = 3, 10
"""Minimum and maximum of the mean number of characters per word."""
MOST_SYMBOLS = 0.1
"""Maximum number of hash signs, or of ellipses, per word."""
MOST_BULLETS, MOST_ELLIPSES = 0.9, 0.3
"""Maximum fraction of lines that begin with a bullet, and of lines that end with an ellipsis."""
LEAST_LETTERS = 0.8
"""Minimum fraction of words that have a letter."""
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
LEAST_STOP_WORDS = 2
MOST_REPEATED_LINES, MOST_REPEATED_CHARACTERS = 0.3, 0.2
"""Maximum fraction of lines that are repeated, and of characters in repeated lines."""
TOP_GRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
"""n -> maximum fraction of characters in the most frequent word n-gram."""
REPEATED_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""n -> maximum fraction of characters in word n-grams that occurred before."""


def _words(text: str) -> list[str]:
    """Return the words of a text, without single punctuation marks."""
    return [word for word in words(text) if word[0].isalnum() or len(word) > 1]


def _length(text: str, settings: Settings) -> str | Dropped:
    count = len(_words(text))
    return text if LEAST_WORDS <= count <= MOST_WORDS else Dropped(f"{count:,} words")


def _word_length(text: str, settings: Settings) -> str | Dropped:
    spelled = _words(text)
    mean = fraction(sum(map(len, spelled)), len(spelled))
    return text if SHORTEST_WORD <= mean <= LONGEST_WORD else Dropped(f"{mean:.1f} characters for each word")


def _symbols(text: str, settings: Settings) -> str | Dropped:
    count = len(words(text))
    for what, found in (("hash signs", text.count("#")), ("ellipses", text.count("...") + text.count("…"))):
        if fraction(found, count) > MOST_SYMBOLS:
            return Dropped(f"{fraction(found, count):.2f} {what} for each word")
    return text


def _bullets(text: str, settings: Settings) -> str | Dropped:
    lines = text.split("\n")
    found = fraction(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines))
    return Dropped(f"{found:.2f} of the lines begin with a bullet") if found > MOST_BULLETS else text


def _ellipses(text: str, settings: Settings) -> str | Dropped:
    lines = text.split("\n")
    found = fraction(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines))
    return Dropped(f"{found:.2f} of the lines end with an ellipsis") if found > MOST_ELLIPSES else text


def _letters(text: str, settings: Settings) -> str | Dropped:
    found = words(text)
    lettered = fraction(sum(any(map(str.isalpha, word)) for word in found), len(found))
    return text if lettered >= LEAST_LETTERS else Dropped(f"{lettered:.2f} of the words have a letter")


def _stop_words(text: str, settings: Settings) -> str | Dropped:
    count = sum(word in STOP_WORDS for word in words(text))
    return text if count >= LEAST_STOP_WORDS else Dropped(f"{count} of the words {' '.join(sorted(STOP_WORDS))}")


def _repeated_lines(text: str, settings: Settings) -> str | Dropped:
    lines = text.split("\n")
    count, characters = duplicates(lines)
    if fraction(count, len(lines)) > MOST_REPEATED_LINES:
        return Dropped(f"{fraction(count, len(lines)):.2f} of the lines are repeated")
    if fraction(characters, len(text)) > MOST_REPEATED_CHARACTERS:
        return Dropped(f"{fraction(characters, len(text)):.2f} of the characters in repeated lines")
    return text


def _top_grams(text: str, settings: Settings) -> str | Dropped:
    found = words(text)
    for size, most in TOP_GRAMS.items():
        grams = Counter(" ".join(found[at : at + size]) for at in range(len(found) - size + 1))
        for gram, count in grams.most_common(1):
            if len(gram) * count / len(text) > most:
                return Dropped(f"{len(gram) * count / len(text):.2f} of the characters in one sequence of {size} words")
    return text


def _repeated_grams(text: str, settings: Settings) -> str | Dropped:
    found = words(text)
    for size, most in REPEATED_GRAMS.items():
        repeated = _repeated_characters(found, size)
        if repeated / len(text) > most:
            return Dropped(f"{repeated / len(text):.2f} of the characters in repeated sequences of {size} words")
    return text


def _repeated_characters(found: tuple[str, ...], size: int) -> int:
    """Return the number of characters in repeated word n-grams of this size; overlaps are counted once."""
    seen: set[str] = set()
    at = characters = 0
    while at <= len(found) - size:
        gram = "".join(found[at : at + size])
        if gram in seen:
            characters, at = characters + len(gram), at + size
        else:
            seen.add(gram)
            at += 1
    return characters


RULES = (
    TextRule("gopher_repeated_lines", f"{CODE}/gopher_repetition_filter.py", _repeated_lines),
    TextRule("gopher_top_grams", f"{CODE}/gopher_repetition_filter.py", _top_grams),
    TextRule("gopher_repeated_grams", f"{CODE}/gopher_repetition_filter.py", _repeated_grams),
    TextRule("gopher_length", f"{CODE}/gopher_quality_filter.py", _length),
    TextRule("gopher_word_length", f"{CODE}/gopher_quality_filter.py", _word_length),
    TextRule("gopher_symbols", f"{CODE}/gopher_quality_filter.py", _symbols),
    TextRule("gopher_bullets", f"{CODE}/gopher_quality_filter.py", _bullets),
    TextRule("gopher_ellipses", f"{CODE}/gopher_quality_filter.py", _ellipses),
    TextRule("gopher_letters", f"{CODE}/gopher_quality_filter.py", _letters),
    TextRule("gopher_stop_words", f"{CODE}/gopher_quality_filter.py", _stop_words),
)
