"""Duplicates: the first copy in the order of reading is kept; near ones are found as often as the bands promise."""

import string

import numpy as np
import pytest

from plmjax.data.cleaning import cleaner, duplicates

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
    """Of a span of three sentences across lines and within a document too."""
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


def test_case_punctuation_accents_and_numbers_do_not_count() -> None:
    five, changed = "Déjà vu of three, 1999 years.", "deja VU of; three 7 YEARS!"
    for texts, kept in (([five, changed], 1), (["One two three four."] * 2, 2)):  # sequences have five words
        assert len(list(cleaner(["near_duplicates"]).texts(texts))) == kept
