"""A paragraph of every language that has sentence rules, and of some that need no stop at the end of a sentence."""

from pathlib import Path

from plmjax.data import sentences

_ROWS = (Path(__file__).parent / "paragraphs.tsv").read_text(encoding="utf-8").removesuffix("\n").split("\n")
_ALL = dict(row.split("\t") for row in _ROWS)

PARAGRAPHS = {language: _ALL[language] for language in sentences.LANGUAGES}
"""Code of a language -> the first article of the Universal Declaration of Human Rights, in some as a question or with
words in the quotation marks of the language."""
UNSTOPPED = {language: text for language, text in _ALL.items() if language not in PARAGRAPHS}
"""The same of languages without sentence rules: some without a stop at the end, or with an invisible mark after it."""
