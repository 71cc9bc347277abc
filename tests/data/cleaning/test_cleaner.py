"""Rules in the order of their names, the counts of their effects, languages, and copies, of which the first is kept."""

import json
import string
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.data import cleaning, formats, store
from plmjax.data.cleaning import catalogue, cleaner, duplicates, language
from plmjax.data.cleaning.rule import Settings, words
from plmjax.data.preparation import prepare
from tests.data.paragraphs import PARAGRAPHS
from tests.data.random_texts import document

JUNK = "lorem ipsum and what not follows here.\n" + document(1)


@pytest.fixture
def corpus(tmp_path):
    """Documents, copies of them, and a page of junk."""
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*(document(seed % 50) for seed in range(80)), JUNK]))
    return path


def test_report_counts_each_rule_with_examples(corpus, tokenizer, tmp_path, capsys) -> None:
    output = tmp_path / "out"
    names = ["c4_lorem_ipsum", "c4_short_lines", "exact_duplicates"]
    dataset = prepare([corpus], "auto", tokenizer, output, clean=names, processes=1)
    report = json.loads((output / cleaning.REPORT).read_text())
    assert cleaning.REPORT in json.loads((output / store.MANIFEST).read_text())["other_files"]
    lorem, short, exact = report["rules"]
    assert report["read"]["documents"] == 81 and report["kept"]["documents"] == 50
    assert lorem["dropped"]["documents"] == 1 and lorem["dropped"]["characters"] == len(JUNK)
    assert lorem["examples"] == [{"place": str(corpus), "reason": "lorem ipsum", "text": lorem["examples"][0]["text"]}]
    assert lorem["examples"][0]["text"].startswith("lorem ipsum and what")
    assert short["changed"]["documents"] and not short["dropped"]["documents"]

    assert exact["dropped"]["documents"] == 30 and len(exact["examples"]) == 3
    parts = [rule[kind]["characters"] for rule in report["rules"] for kind in ("dropped", "changed")]
    assert report["kept"]["characters"] + sum(parts) == report["read"]["characters"]
    tokens = sum(dataset.split(name).token_count for name in store.SPLITS)
    assert report["kept"]["tokens"] == tokens
    rate = tokens / report["kept"]["characters"]
    assert exact["dropped"]["about_tokens"] == round(exact["dropped"]["characters"] * rate)
    printed = capsys.readouterr().out
    assert "cleaning   kept 50 of 81 documents" in printed and "exact_duplicates       dropped 30 documents" in printed


def test_a_later_rule_is_given_the_text_that_the_rules_before_it_left() -> None:
    """White space within lines is left as it is after the first stage too."""
    texts = ["One two three four five.\nno mark", "One two three four five."]
    assert len(list(cleaning.cleaner(["exact_duplicates", "c4_end_marks"]).texts(texts))) == 2
    assert len(list(cleaning.cleaner(["c4_end_marks", "exact_duplicates"]).texts(texts))) == 1
    texts = ["  One  two.\n \n\tThree four.  ", "One  two.\nThree four.", "Five."]
    names = ["exact_duplicates", "c4_duplicate_lines", "c4_lorem_ipsum"]
    assert list(cleaning.cleaner(names).texts(texts)) == ["One  two.\nThree four.", "Five."]
    screened = cleaning.cleaner(names).screen(1, [formats.Document("text", "a", " kept as it is ")])
    assert [document.text for document in screened.documents] == [" kept as it is "]


TEXTS = {
    "en": "The river walks under an old green bridge, and a child reads slowly in the city.",
    "de": "Der Fluss fließt unter einer alten grünen Brücke, und ein Kind liest langsam in der Stadt.",
}


@pytest.mark.parametrize("rule", ["c4_language", "fineweb_language"])
@pytest.mark.parametrize("code", TEXTS)
def test_texts_of_the_language_are_kept(rule: str, code: str) -> None:
    assert list(cleaning.cleaner([rule], language=code).texts(TEXTS.values())) == [TEXTS[code]]


@pytest.mark.parametrize(
    ("found", "probability", "kept"),
    [
        ("en", 0.99, ["c4_language", "fineweb_language"]),
        ("en", 0.989, ["fineweb_language"]),
        ("en", 0.65, ["fineweb_language"]),
        ("en", 0.649, []),
        ("de", 1.0, []),
    ],
)
def test_each_rule_has_the_threshold_of_its_paper(found: str, probability: float, kept: list[str], monkeypatch) -> None:
    detector = SimpleNamespace(labels=["en", "de"], classify=lambda text: (found, probability))
    monkeypatch.setattr(language, "_detector", lambda: detector)
    rules = ("c4_language", "fineweb_language")
    assert [rule for rule in rules if list(cleaning.cleaner([rule], language="en").texts(["A text."]))] == kept


@pytest.mark.parametrize("code", PARAGRAPHS)
def test_words_and_ends_of_lines_of_every_language(code: str) -> None:
    """The rules drop nothing of a paragraph, and drop a title. Signs of vowels are parts of their words."""
    text, settings = PARAGRAPHS[code], Settings(code)
    if code not in ("ja", "zh"):
        regex = pytest.importorskip("regex")
        expected = regex.findall(r"[\p{L}\p{M}\p{N}\u200c\u200d]+(?:[-'’][\p{L}\p{M}]+)*", text)
        assert [word for word in words(text) if word[0].isalnum()] == expected
    assert catalogue.RULES["c4_end_marks"].apply(f"{text}\nA title", settings) == text
    assert catalogue.RULES["fineweb_line_ends"].apply(f"{text}\nA title", settings) == f"{text}\nA title"
    if code in "ar bn gu hi kn ml mr my pa ta te".split():
        assert catalogue.RULES["gopher_letters"].apply(text, settings) == text


A, B, C, D, E = (f"{word} is the sentence of this letter." for word in "Anton Berta Caesar Dora Emil".split())


SPANS = "three_sentence_spans"


@pytest.mark.parametrize(
    ("rule", "texts", "kept"),
    [
        ("exact_duplicates", ["One.", "Two.", "One.", "one."], ["One.", "Two.", "one."]),
        (SPANS, [f"{A} {B} {C}", f"{D} {A} {B} {C} {E}"], [f"{A} {B} {C}", f"{D} {E}"]),
        (SPANS, [f"{A} {B}\n{C} {D}", f"{E}\n{A}\n{B} {C} {D} {E}"], [f"{A} {B}\n{C} {D}", f"{E}\n{E}"]),
        (SPANS, [f"{A} {B} {C} {A} {B} {C}"], [f"{A} {B} {C}"]),
        (SPANS, [f"{A} {B} {C}", f"{A}  {B}\n{C}", E], [f"{A} {B} {C}", E]),
    ],
)
def test_all_but_the_first_copy_are_removed(rule: str, texts: list[str], kept: list[str]) -> None:
    """A copy may be a span of three sentences, which may cross lines and lie within one document."""
    assert list(cleaner([rule]).texts(texts)) == kept


def random_words(count: int, draws: np.random.Generator) -> list[str]:
    return ["".join(word) for word in draws.choice(list(string.ascii_lowercase), (count, 8))]


def variant(words: list[str], share: float, draws: np.random.Generator) -> list[str]:
    """The words with the last of them replaced, so that the sequences of five words overlap by about `share`."""
    same = round((len(words) - 4) * 2 * share / (1 + share)) + 4
    return [*words[:same], *random_words(len(words) - same, draws)]


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_near_duplicates_are_found_as_often_as_their_bands_promise(share: float) -> None:
    draws = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        words = random_words(300, draws)
        pair = [" ".join(words), " ".join(variant(words, share, draws))]
        found += len(list(cleaner(["near_duplicates"]).texts(pair))) == 1
    promised = 1 - (1 - share**duplicates.BAND) ** duplicates.BANDS
    assert abs(found / 200 - promised) < 0.08
