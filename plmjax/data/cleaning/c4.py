"""C4's rules on the lines and the pages of a crawl, as in its released code.

Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text transformer", section 2.2,
and tensorflow/datasets, tensorflow_datasets/text/c4_utils.py. The code tests the lines of a page one after another. A
rule here tests all lines that the rules before it kept, which gives the same page.

Deviation: the code is for English, where a line ends with one of four marks. In other languages, a line may also end
with any other mark that ends a sentence, such as a danda or a closing guillemet.

Deviation: the code counts sentences with the English model of NLTK's Punkt, which has to be downloaded. Here sentencex
counts them (plmjax.data.sentences).
"""

import heapq
import re

from plmjax.data import sentences
from plmjax.data.cleaning.rule import Dropped, Settings, TextRule, is_ended, kept_lines

CODE = "tensorflow/datasets, tensorflow_datasets/text/c4_utils.py"
LONGEST_PAGE = 190_000
"""Maximum number of characters of a page."""
LONGEST_WORD = 1000
LEAST_WORDS = 5
LEAST_SENTENCES = 3
END_MARKS = (".", "?", "!", '"')
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
LEAST_PARAGRAPHS, LEAST_PARAGRAPH = 3, 200
"""Minimum number of long paragraphs of a page in mC4, and of characters of a long paragraph."""
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_WITHOUT_SPACES = ("ja", "th", "zh")
"""Languages without spaces between words, in which a bad word is also found inside other text."""


def _long_page(text: str, settings: Settings) -> str | Dropped:
    if len(text) > LONGEST_PAGE:
        return Dropped(f"{len(text):,} characters")
    return text


def _long_words(text: str, settings: Settings) -> str:
    return kept_lines(text, lambda line: all(len(word) <= LONGEST_WORD for word in line.split()))


def _citations(text: str, settings: Settings) -> str:
    # White space before a citation at the end of a line stays, so that the rule of end marks drops the line.
    return _CITATION.sub("", text)


def _end_marks(text: str, settings: Settings) -> str:
    return kept_lines(text, lambda line: is_ended(line, END_MARKS, settings) and not line.endswith("..."))


def _short_lines(text: str, settings: Settings) -> str:
    return kept_lines(text, lambda line: len(line.split()) >= LEAST_WORDS)


def _lorem_ipsum(text: str, settings: Settings) -> str | Dropped:
    return Dropped("lorem ipsum") if "lorem ipsum" in text.lower() else text


def _javascript(text: str, settings: Settings) -> str:
    return kept_lines(text, lambda line: "javascript" not in line.lower())


def _curly_brackets(text: str, settings: Settings) -> str | Dropped:
    return Dropped("a curly bracket") if "{" in text else text


def _policies(text: str, settings: Settings) -> str:
    return kept_lines(text, lambda line: not any(policy in line.lower() for policy in POLICIES))


def few_sentences(text: str, least: int, settings: Settings) -> str | Dropped:
    """Return the text, or drop it if it has fewer than `least` sentences."""
    count = len(sentences.split(text.split("\n"), settings.language))
    return text if count >= least else Dropped(f"{count} sentence{'s' * (count != 1)}")


def _sentences(text: str, settings: Settings) -> str | Dropped:
    return few_sentences(text, LEAST_SENTENCES, settings)


def _paragraphs(text: str, settings: Settings) -> str | Dropped:
    longest = heapq.nlargest(LEAST_PARAGRAPHS, map(len, text.split("\n")))
    if len(longest) < LEAST_PARAGRAPHS or longest[-1] < LEAST_PARAGRAPH:
        return Dropped(f"fewer than {LEAST_PARAGRAPHS} lines of {LEAST_PARAGRAPH} characters")
    return text


def _bad_words(text: str, settings: Settings) -> str | Dropped:
    # `re` caches the compiled pattern.
    words = "|".join(map(re.escape, settings.bad_words))
    pattern = words if settings.language in _WITHOUT_SPACES else rf"(?:\W|^)({words})(?:\W|$)"
    found = re.search(pattern, text.lower())
    return Dropped("a bad word") if found else text


BAD_WORDS = TextRule("c4_bad_words", f"{CODE}, get_badwords_filter_fn", _bad_words)
RULES = (
    TextRule("c4_long_pages", f"{CODE}, is_valid_length", _long_page),
    TextRule("c4_long_words", f"{CODE}, clean_page", _long_words),
    TextRule("c4_citations", f"{CODE}, clean_page", _citations),
    TextRule("c4_end_marks", f"{CODE}, clean_page", _end_marks),
    TextRule("c4_short_lines", f"{CODE}, clean_page", _short_lines),
    TextRule("c4_lorem_ipsum", f"{CODE}, clean_page", _lorem_ipsum),
    TextRule("c4_javascript", f"{CODE}, clean_page", _javascript),
    TextRule("c4_curly_brackets", f"{CODE}, clean_page", _curly_brackets),
    TextRule("c4_policies", f"{CODE}, clean_page", _policies),
    TextRule("c4_sentences", f"{CODE}, clean_page", _sentences),
    TextRule("c4_paragraphs", f"{CODE}, paragraph_filter", _paragraphs),
    BAD_WORDS,
)
