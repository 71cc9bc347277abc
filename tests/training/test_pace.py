"""The means that a line of the log has."""

import math

import pytest

from plmjax.training.pace import Window


def test_a_mean_is_that_of_the_steps_that_have_the_metric() -> None:
    """A resumed run begins with the sums of its checkpoint."""
    window = Window({"loss": (4.0, 2)})
    window.add({"loss": 8.0, "accuracy": math.nan, "learning_rate": 1.0})
    window.add({"loss": 3.0, "accuracy": 0.5, "learning_rate": 1.0})
    assert window.means() == {"train/loss": pytest.approx(15 / 4), "train/accuracy": 0.5}
    assert window.means() == {}


def test_a_loss_that_is_no_number_shows_in_the_line() -> None:
    """A mean over the other steps would hide that the training has failed."""
    window = Window({})
    window.add({"loss": 1.0})
    window.add({"loss": math.nan})
    assert math.isnan(window.means()["train/loss"])
