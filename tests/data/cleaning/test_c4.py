"""C4's rules, equal to those of its released code on texts that trigger each of them, and on mixtures of such lines.

Deviation of plmjax.data.cleaning.c4: the number of sentences. The code is given ours here, in place of Punkt's.
"""

from collections import Counter

import numpy as np
import pytest
from tensorflow_datasets.text import c4_utils

from plmjax.data import formats, sentences
from plmjax.data.cleaning import c4, catalogue, cleaner
from plmjax.data.cleaning.rule import Dropped, Settings

GOOD = [
    "The river walks under an old green bridge. It never sings.",
    'A child reads slowly in the city. "She never stops reading again."',
    "Who walks over the stone at night? Nobody has ever seen it!",
    "This is a sentence of seven short words.",
]
LINES = {
    "too_long_word": f"The long {'w' * 1001} word stands in this line.",
    "no_endmark": "This line has no mark at its end",
    "ellipsis": "This line goes on and on and on...",
    "a word that is just short enough": f"The long {'w' * 1000} word stands in this line.",
    "too_short": "Only four words here.",
    "words that are just enough": "Five words are just enough.",
    "loremipsum": "A text with Lorem Ipsum in the midst of it.",
    "javascript": "Please enable JavaScript to see this page at all.",
    "squigglybracket": "The function f(x) { return x } is code of a page.",
    "policy": "By reading on you accept our Cookie Policy today.",
    "citation": "The fox[12] is red[edit] in winter[citation needed] and summer.",
    "citation at the end": "The fox is a red animal of the wood. [3]",
    "citation at the start": "[3] The fox is a red animal of the wood.",
    "other line end": "The river walks under the bridge.\x0bThe child never reads under the bridge.",
    "white space": "   The river walks under the bridge.\t ",
}
SEPARATE = {
    "c4_long_words": "line-filtered:too_long_word",
    "c4_end_marks": "line-filtered:no_endmark",
    "c4_short_lines": "line-filtered:too_short",
    "c4_lorem_ipsum": "filtered:loremipsum",
    "c4_javascript": "line-filtered:javascript",
    "c4_curly_brackets": "filtered:squigglybracket",
    "c4_policies": "line-filtered:policy",
    "c4_sentences": "filtered:too_few_sentences",
}
"""Rule -> the counter of the code for what it removes."""


class _Sentences:
    """The splitter in the place of Punkt."""

    @staticmethod
    def tokenize(text: str) -> list[str]:
        return sentences.split(text.split("\n"))


@pytest.fixture(autouse=True)
def splitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c4_utils, "_SENTENCE_TOKENIZER", _Sentences)
    monkeypatch.setattr(c4_utils, "get_counter_inc_fn", lambda name: lambda counter, amount=1: None)


def released(text: str) -> tuple[str, Counter]:
    """The page that the released code makes of a text, "" where it drops it, and its counters."""
    counts: Counter = Counter()
    page = c4_utils.PageFeatures(url="http://a.example", text=text)
    clean = c4_utils.get_clean_page_fn()
    found = list(clean(page, counter_inc_fn=lambda name, amount=1: counts.update({name: amount})))
    return (found[0].text if found else ""), counts


def ours(text: str, *names: str) -> str:
    return next(cleaner(names).texts([text]), "").strip()


@pytest.mark.parametrize(("rule", "counter"), SEPARATE.items())
def test_each_rule_has_the_effect_that_the_code_counts(rule: str, counter: str) -> None:
    """Alone it removes the line that the code counts, or drops the page, and keeps all other lines."""
    kind, _, name = counter.partition(":")
    text = GOOD[0] if name == "too_few_sentences" else "\n".join([GOOD[0], LINES[name], *GOOD[1:]])
    left = catalogue.RULES[rule].apply(text, Settings())
    assert released(text)[1][counter] == 1
    assert left == "\n".join(GOOD) if kind == "line-filtered" else isinstance(left, Dropped)


def test_pages_of_each_line_and_of_mixtures_are_those_of_the_released_code() -> None:
    for name, line in LINES.items():
        text = "\n".join([GOOD[0], line, *GOOD[1:]])
        assert ours(text, "c4_lines") == released(text)[0], name
    draws, lines = np.random.default_rng(0), [*GOOD, *LINES.values(), "", "Short one."]
    weights = np.array([6.0] * len(GOOD) + [1.0] * (len(lines) - len(GOOD)))
    pages = [
        "\n".join(draws.choice(lines, draws.integers(1, 8), p=weights / weights.sum()).tolist()) for _ in range(400)
    ]
    results = [released(page)[0] for page in pages]
    assert 50 < sum(map(bool, results)) < 350
    assert [ours(page, "c4_lines") for page in pages] == results


@pytest.mark.parametrize("language", ["en", "ja"])
def test_bad_words_are_those_of_the_released_code(language: str, tmp_path) -> None:
    words = ["foo", "a b", "c++"]
    (tmp_path / "words.txt").write_text("\n".join(f"  {word} " for word in words) + "\n \n")
    keeps = c4_utils.get_badwords_filter_fn({language: words})
    rules = cleaner(["c4_bad_words"], bad_words=tmp_path / "words.txt", language=language)
    for text in ("A Foo.", "foolish", "Foo", "an a b", "a  b", "write c++ now", "c+", "xfoo"):
        kept = keeps(c4_utils.PageFeatures(text=text, language=language, normalized_url="a"))
        assert bool(list(rules.texts([text]))) == kept, text


def test_duplicate_lines_are_those_of_the_released_code() -> None:
    """Deviation of plmjax.data.cleaning.duplicates: the first page in the order of reading keeps a line."""
    pages = ["\n".join(GOOD), "\n".join([GOOD[1], "A line of the second page.", GOOD[3].upper()]), GOOD[2]]
    seen: dict[str, str] = {}
    kept = []
    for url, page in enumerate(pages):
        for key, _ in c4_utils._emit_url_to_lines(c4_utils.PageFeatures(url=str(url), text=page)):
            seen.setdefault(key, str(url))
        keys = [key for key, owner in seen.items() if owner == str(url)]
        joined = (str(url), {"pages": [c4_utils.PageFeatures(url=str(url), text=page)], "lines": keys})
        kept += [left.text for left in c4_utils._remove_lines_from_text(joined, lambda *_: None, 0)]
    assert list(cleaner(["c4_duplicate_lines"]).texts(pages)) == kept == ["\n".join(GOOD), "A line of the second page."]


def test_the_set_is_in_the_order_of_the_released_code() -> None:
    """Its lengths are those of the code too."""
    for rule, lengths, theirs in (
        ("c4_long_pages", [190_000], c4_utils.is_valid_length),
        ("c4_long_pages", [190_001], c4_utils.is_valid_length),
        ("c4_paragraphs", [200] * 3, c4_utils.paragraph_filter),
        ("c4_paragraphs", [200, 199, 200], c4_utils.paragraph_filter),
    ):
        text = "\n".join("a" * length for length in lengths)
        assert bool(ours(text, rule)) == theirs(c4_utils.PageFeatures(text=text))
    names = catalogue.names(["c4"])
    assert names[0] == "c4_long_pages" and names[-1] == "c4_language" and names[1:10] == catalogue.SETS["c4_lines"]
    assert names[10:12] == ("c4_duplicate_lines", "c4_sentences")
    document = formats.Document("text", "a", "\n".join(GOOD))
    assert cleaner(["c4"]).screen(0, [document]).documents == [document]
    assert sorted(c4.POLICIES) == sorted(c4_utils._POLICY_SUBSTRINGS) and c4.END_MARKS == c4_utils._END_MARKS
