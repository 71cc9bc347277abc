"""The words that the rules count."""

from plmjax.data.cleaning.rule import words

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
