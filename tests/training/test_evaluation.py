"""What is made of the sums of an evaluation."""

import numpy as np
import pytest

from plmjax.training import evaluation


def test_unigram_entropy_counts_every_token_once_more() -> None:
    nats = evaluation.unigram_nats(np.array([3, 0]), 4)
    np.testing.assert_allclose(nats, -np.log(np.array([4, 1, 1, 1]) / 7), rtol=1e-6)


def test_the_joint_loss_has_every_term_as_in_training() -> None:
    """A term without a coefficient counts once."""
    held_out = evaluation.HeldOut(None, seed=0, coefficients={"second": 50.0})
    totals = {"loss": (6.0, 3.0), "first_loss": (6.0, 3.0), "second_loss": (2.0, 4.0), "accuracy": (3.0, 4.0)}
    found = held_out.means({name: np.array(pair) for name, pair in totals.items()})
    assert found == pytest.approx({"loss": 2, "first_loss": 2, "second_loss": 0.5, "accuracy": 0.75, "joint_loss": 27})
