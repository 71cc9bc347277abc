"""The metrics of GLUE against their formulas and hand-made cases."""

import math

import numpy as np
import pytest

from plmjax.finetuning.metrics import classification


def test_two_labels():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    found = np.array([1, 1, 0, 0, 0, 1, 0, 1])
    hit, missed, false, passed = 3, 1, 1, 3
    values = classification.scores(labels, found, 2)
    root = math.sqrt((hit + false) * (hit + missed) * (passed + false) * (passed + missed))
    assert values == pytest.approx(
        {
            "accuracy": 6 / 8,
            "f1": 2 * hit / (2 * hit + missed + false),
            "matthews": (hit * passed - false * missed) / root,
        }
    )


def test_f1_of_two_labels_is_that_of_label_one_even_where_it_never_occurs():
    assert classification.scores(np.zeros(4, int), np.zeros(4, int), 2)["f1"] == 0.0
    assert classification.scores(np.zeros(4, int), np.zeros(4, int), 2)["accuracy"] == 1.0


def test_three_labels_take_the_mean_f1():
    values = classification.scores(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]), 3)
    assert values["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_numbers():
    targets, found = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 17.0])
    values = classification.regression(targets, found)
    covariance = np.mean((targets - targets.mean()) * (found - found.mean()))
    assert values["pearson"] == pytest.approx(covariance / targets.std() / found.std())
    assert values["spearman"] == pytest.approx(1.0)  # the same order
    assert values["mean_squared_error"] == pytest.approx((0 + 4 + 36 + 169) / 4)
    assert math.isnan(classification.regression(targets, np.ones(4))["pearson"])
