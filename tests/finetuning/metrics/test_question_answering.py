"""The metrics of SQuAD and CMRC against their formulas and hand-made cases."""

import numpy as np
import pytest

from plmjax.finetuning.metrics import question_answering

SQUAD = {
    ("Denver Broncos", "the Denver  Broncos!"): (1, 1),
    ("Denver Broncos", "Broncos"): (0, 2 / 3),
    ("Denver Broncos", "Broncos Broncos"): (0, 1 / 2),  # a word counts as often as both have it
    ("Denver Broncos", ""): (0, 0),
    ("Denver Broncos", "The"): (0, 0),
    ("a b c", "b c d"): (0, 4 / 5),  # a is an article
    ("3.5", "35"): (1, 1),
    ("an  aNt", "ant"): (1, 1),
    ("U.S.", "us"): (1, 1),
    ("and", "an d"): (0, 0),
}


@pytest.mark.parametrize(("answer", "prediction"), SQUAD)
def test_squad_compares_words(answer, prediction):
    assert question_answering.squad([answer], prediction) == pytest.approx(SQUAD[answer, prediction])
    assert question_answering.squad(["nothing shared", answer, "other"], prediction) == question_answering.squad(
        [answer], prediction
    )
    assert question_answering.squad([answer], answer) == (1, 1)


def test_squad_without_an_answer():
    assert question_answering.squad([], "") == (1, 1) and question_answering.squad([], "some") == (0, 0)
    assert question_answering.squad([], "the") == (1, 1)  # nothing is left of it
    # As SQuAD 2.0's script, which leaves out answers of which nothing is left unless there is no other.
    assert question_answering.squad(["the", "dog"], "") == (0, 0) and question_answering.squad(["the"], "") == (1, 1)


def test_squad_is_symmetric_and_blind_to_case_punctuation_articles_and_order():
    draws = np.random.default_rng(0)
    words = np.array(["x", "y", "z", "the", "an", "A", "w!", ",", "Y"])
    for _ in range(200):
        first, second = (" ".join(draws.choice(words, draws.integers(1, 6))) for _ in range(2))
        exact, f1 = question_answering.squad([first], second)
        assert (exact, f1) == question_answering.squad([second], first)
        assert question_answering.squad([first.upper()], f"The {second}.") == (exact, f1)
        assert question_answering.squad([" ".join(reversed(first.split()))], second)[1] == f1
        assert 0 <= exact <= f1 <= 1


CMRC = {
    ("光荣和ω-force", "光荣和ω-force"): (1, 1),
    ("光荣和ω-force", "《光荣》和ωFORCE。"): (1, 1),  # case and the script's marks
    ("村雨城", "任天堂游戏谜之村雨城"): (0, 6 / 13),
    ("村雨城", "村城"): (0, 2 / 5),  # the longest run, not all that is shared
    ("2010年", "2010年5月"): (0, 4 / 6),
    ("3.5", "35"): (0, 0),  # a point is none of its marks
    ("a b", "ab"): (0, 0),
    ("城", ""): (0, 0),
    ("1……2", "12"): (0, 0),  # Deviation of the script from what it means: … stays
}


@pytest.mark.parametrize(("answer", "prediction"), CMRC)
def test_cmrc_compares_runs_of_characters(answer, prediction):
    assert question_answering.cmrc([answer], prediction) == pytest.approx(CMRC[answer, prediction])
    assert question_answering.cmrc(["无", answer], prediction) == question_answering.cmrc([answer], prediction)


def test_cmrc_without_an_answer():
    assert question_answering.cmrc([], "") == (1, 1) and question_answering.cmrc([], "城") == (0, 0)


def test_deviation_cmrc_words_in_latin_letters_are_parted_at_spaces():
    """NLTK's tokenizer would part `won't` and `(b)` too."""
    assert question_answering.cmrc(["won't do"], "won't go") == (0, 1 / 2)
