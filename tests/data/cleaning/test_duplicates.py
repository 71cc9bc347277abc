"""Duplicates: the first copy in the order of reading is kept; near ones are found as often as the bands promise."""

import string
import sys
import types

import numpy as np
import pytest

from plmjax.data.cleaning import cleaner, duplicates
from plmjax.data.cleaning.repeated import Seen
from plmjax.data.cleaning.rule import Settings
from plmjax.errors import UserError

A, B, C, D, E = (f"{word} is the sentence of this letter." for word in "Anton Berta Caesar Dora Emil".split())


def test_exact_duplicates() -> None:
    assert list(cleaner(["exact_duplicates"]).texts(["One.", "Two.", "One.", "one."])) == ["One.", "Two.", "one."]


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        ([f"{A} {B} {C}", f"{D} {A} {B} {C} {E}"], [f"{A} {B} {C}", f"{D} {E}"]),
        ([f"{A} {B} {C}", f"{A} {B}"], [f"{A} {B} {C}", f"{A} {B}"]),
        ([f"{A} {B}\n{C} {D}", f"{E}\n{A}\n{B} {C} {D} {E}"], [f"{A} {B}\n{C} {D}", f"{E}\n{E}"]),
        ([f"{A} {B} {C} {A} {B} {C}"], [f"{A} {B} {C}"]),
        ([f"{A} {B} {C}", f"{A}  {B}\n{C}", E], [f"{A} {B} {C}", E]),
    ],
)
def test_three_sentence_spans(texts: list[str], kept: list[str]) -> None:
    """All but the first of any span of three sentences are removed, across lines and within a document too."""
    assert list(cleaner(["three_sentence_spans"]).texts(texts)) == kept


def random_words(count: int, draws: np.random.Generator) -> list[str]:
    return ["".join(word) for word in draws.choice(list(string.ascii_lowercase), (count, 8))]


def variant(words: list[str], share: float, draws: np.random.Generator) -> list[str]:
    """The words with the last of them replaced, so that the sequences of five words overlap by about `share`."""
    same = round((len(words) - 4) * 2 * share / (1 + share)) + 4
    return [*words[:same], *random_words(len(words) - same, draws)]


@pytest.mark.parametrize("share", [0.3, 0.8, 0.95])
def test_near_duplicates_are_found_as_often_as_their_bands_promise(share: float) -> None:
    draws = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        words = random_words(300, draws)
        pair = [" ".join(words), " ".join(variant(words, share, draws))]
        found += len(list(cleaner(["near_duplicates"]).texts(pair))) == 1
    promised = 1 - (1 - share**duplicates.BAND) ** duplicates.BANDS
    assert abs(found / 200 - promised) < 0.08


def test_of_a_chain_of_near_duplicates_the_first_is_kept() -> None:
    """Deviation of plmjax.data.cleaning.duplicates._without_similar: groups are not joined afterwards."""

    def kept(*documents: list[int]) -> list[bool]:
        seen = Seen()
        repeated = [seen.repeated(np.array(bands, np.uint64)[:, None]) for bands in documents]
        return [duplicates.NEAR.without("text", bands, Settings()) == "text" for bands in repeated]

    assert kept([1, 2], [2, 3], [3, 4]) == [True, False, False]
    assert kept([1], [2], [1, 2]) == [True, True, False]


def test_case_punctuation_accents_and_numbers_do_not_count() -> None:
    assert duplicates.simplified("Déjà vu, 1999!") == duplicates.simplified("deja VU 7") == ("deja", "vu", "0")
    assert list(cleaner(["near_duplicates"]).texts(["Too short.", "Too short."])) == ["Too short."] * 2


def test_a_library_that_is_absent_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    duplicates.rensa.cache_clear()
    with pytest.raises(UserError, match=r"Expected rensa .* found it not installed; pip install 'plmjax\[clean\]'"):
        cleaner(["fineweb"])
    duplicates.rensa.cache_clear()


def test_a_text_of_five_words_has_one_sequence_and_every_band_a_key_of_its_own(monkeypatch) -> None:
    """Bands of equal hashes too: a band is compared with those of its place alone."""
    seen = []

    class Sketch:
        def __init__(self, num_perm: int, seed: int) -> None:
            self.count = num_perm

        def update(self, grams: list[str]) -> None:
            seen.append(grams)

        def digest(self) -> list[int]:
            return [7] * self.count

    monkeypatch.setattr(duplicates, "rensa", lambda: types.SimpleNamespace(RMinHash=Sketch))
    assert len(set(duplicates._band_keys("one two three four five", Settings()).tolist())) == 14
    assert len(duplicates._band_keys("one two three four", Settings())) == 0
    duplicates._band_keys("one two three four five six", Settings())
    assert seen == [["one two three four five"], ["one two three four five", "two three four five six"]]
