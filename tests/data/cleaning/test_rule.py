"""The words that the rules count."""

import pytest

from plmjax.data.cleaning import catalogue
from plmjax.data.cleaning.rule import Settings, words
from tests.data.paragraphs import PARAGRAPHS

TEXT = (
    'The U.S. has 1,234 well-known places, he said: "go there." We don\'t know (yet) why... It costs $5.50 and/or 3 '
    "days; wait!"
)


def test_words_are_those_of_nltk_but_for_contractions_and_quotation_marks() -> None:
    """Deviation of plmjax.data.cleaning.rule.words. NLTK takes a full stop as a word only at the end of a text."""
    from nltk.tokenize.destructive import NLTKWordTokenizer  # takes seconds, as every process would at collection

    theirs = NLTKWordTokenizer().tokenize(TEXT)
    changed = {"do": None, "n't": "don't", "``": '"', "''": '"', "there.": "there"}
    theirs = [changed.get(word, word) for word in theirs if changed.get(word, word)]
    assert [word for word in words(TEXT) if word != "."] == [
        word if word == "..." else word.removesuffix(".") for word in theirs
    ]


@pytest.mark.parametrize("language", [language for language in PARAGRAPHS if language not in ("ja", "zh")])
def test_words_of_every_language_are_those_between_spaces_and_marks(language: str) -> None:
    """Signs of vowels are parts of their words, not punctuation."""
    regex = pytest.importorskip("regex")
    text = PARAGRAPHS[language]
    expected = regex.findall(r"[\p{L}\p{M}\p{N}\u200c\u200d]+(?:[-'’][\p{L}\p{M}]+)*", text)
    assert [word for word in words(text) if word[0].isalnum()] == expected


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_a_paragraph_of_every_language_ends_as_its_sentences_do(language: str) -> None:
    """The rules on the ends of lines drop nothing of it, and drop a title."""
    settings, text = Settings(language), f"{PARAGRAPHS[language]}\nA title"
    assert catalogue.RULES["c4_end_marks"].apply(text, settings) == PARAGRAPHS[language]
    assert catalogue.RULES["fineweb_line_ends"].apply(text, settings) == text
    if language != "en":
        assert catalogue.RULES["c4_end_marks"].apply("Un « titre »", Settings("en")) == ""


@pytest.mark.parametrize("language", "ar bn gu hi kn ml mr my pa ta te".split())
def test_most_words_of_a_script_with_signs_have_a_letter(language: str) -> None:
    text = PARAGRAPHS[language]
    assert catalogue.RULES["gopher_letters"].apply(text, Settings(language)) == text
