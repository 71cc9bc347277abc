"""The metrics of GLUE, SQuAD and CMRC against their formulas and hand-made cases."""

import math

import numpy as np
import pytest

from plmjax.finetuning.metrics import metrics


def test_two_labels():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    found = np.array([1, 1, 0, 0, 0, 1, 0, 1])
    hit, missed, false, passed = 3, 1, 1, 3
    values = metrics.classification(labels, found, 2)
    root = math.sqrt((hit + false) * (hit + missed) * (passed + false) * (passed + missed))
    assert values == pytest.approx(
        {
            "accuracy": 6 / 8,
            "f1": 2 * hit / (2 * hit + missed + false),
            "matthews": (hit * passed - false * missed) / root,
        }
    )


def test_f1_of_two_labels_is_that_of_label_one_even_where_it_never_occurs():
    assert metrics.classification(np.zeros(4, int), np.zeros(4, int), 2)["f1"] == 0.0
    assert metrics.classification(np.zeros(4, int), np.zeros(4, int), 2)["accuracy"] == 1.0


def test_three_labels_take_the_mean_f1():
    values = metrics.classification(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]), 3)
    assert values["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_numbers():
    targets, found = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 17.0])
    values = metrics.regression(targets, found)
    covariance = np.mean((targets - targets.mean()) * (found - found.mean()))
    assert values["pearson"] == pytest.approx(covariance / targets.std() / found.std())
    assert values["spearman"] == pytest.approx(1.0)  # the same order
    assert values["mean_squared_error"] == pytest.approx((0 + 4 + 36 + 169) / 4)
    assert math.isnan(metrics.regression(targets, np.ones(4))["pearson"])


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
    assert metrics.squad([answer], prediction) == pytest.approx(SQUAD[answer, prediction])
    assert metrics.squad(["nothing shared", answer, "other"], prediction) == metrics.squad([answer], prediction)
    assert metrics.squad([answer], answer) == (1, 1)


def test_squad_without_an_answer():
    assert metrics.squad([], "") == (1, 1) and metrics.squad([], "some") == (0, 0)
    assert metrics.squad([], "the") == (1, 1)  # nothing is left of it
    # As SQuAD 2.0's script, which leaves out answers of which nothing is left unless there is no other.
    assert metrics.squad(["the", "dog"], "") == (0, 0) and metrics.squad(["the"], "") == (1, 1)


def test_squad_is_symmetric_and_blind_to_case_punctuation_articles_and_order():
    draws = np.random.default_rng(0)
    words = np.array(["x", "y", "z", "the", "an", "A", "w!", ",", "Y"])
    for _ in range(200):
        first, second = (" ".join(draws.choice(words, draws.integers(1, 6))) for _ in range(2))
        exact, f1 = metrics.squad([first], second)
        assert (exact, f1) == metrics.squad([second], first)
        assert metrics.squad([first.upper()], f"The {second}.") == (exact, f1)
        assert metrics.squad([" ".join(reversed(first.split()))], second)[1] == f1
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
    assert metrics.cmrc([answer], prediction) == pytest.approx(CMRC[answer, prediction])
    assert metrics.cmrc(["无", answer], prediction) == metrics.cmrc([answer], prediction)


def test_cmrc_without_an_answer():
    assert metrics.cmrc([], "") == (1, 1) and metrics.cmrc([], "城") == (0, 0)


def test_deviation_cmrc_words_in_latin_letters_are_parted_at_spaces():
    """NLTK's tokenizer would part `won't` and `(b)` too."""
    assert metrics.cmrc(["won't do"], "won't go") == (0, 1 / 2)
