"""Learning rates against the formulas of their papers and released code, computed in float64."""

import jax
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.experiment import Optimizer
from plmjax.training.schedules import SCHEDULES, schedule

PEAK = 3e-4


def rates(name: str, steps: int, warmup: int = 0) -> np.ndarray:
    function = schedule(Optimizer(learning_rate=PEAK, schedule=name, warmup_steps=warmup), steps)
    return np.asarray(jax.jit(jax.vmap(function))(np.arange(steps + 1, dtype=np.int32)), np.float64)


def test_linear_is_berts_with_the_jump_at_the_end_of_the_warmup():
    step = np.arange(101)
    expected = np.where(step < 10, PEAK * step / 10, PEAK * (1 - step / 100))
    found = rates("linear", steps=100, warmup=10)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[0] == 0 and found[-1] == 0
    assert found[9] == pytest.approx(0.9 * PEAK) and found[10] == pytest.approx((1 - 10 / 100) * PEAK)


def test_linear_jumps_down_by_a_tenth_where_the_warmup_is_a_tenth():
    found = rates("linear", steps=10_000, warmup=1000)
    assert found[999] == pytest.approx(0.999 * PEAK, rel=1e-6)
    assert found[1000] == pytest.approx(0.9 * PEAK, rel=1e-6)


def test_a_long_warmup_keeps_its_first_rates_exact():
    function = schedule(Optimizer(learning_rate=1e-4, warmup_steps=10_000), 1_000_000)
    assert float(function(1)) == pytest.approx(1e-8, rel=1e-6)


def test_linear_without_warmup_starts_at_the_peak():
    np.testing.assert_allclose(rates("linear", 50), PEAK * (1 - np.arange(51) / 50), rtol=1e-6)


def test_linear_times_warmup_is_electras():
    """google-research/electra model/optimization.py: polynomial decay from step 0, times min(1, step / warmup)."""
    step = np.arange(101)
    expected = PEAK * (1 - step / 100) * np.minimum(1, step / 10)
    found = rates("linear_times_warmup", steps=100, warmup=10)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[10] == pytest.approx(0.9 * PEAK) and found[:11].max() == found[10], "nothing jumps"
    np.testing.assert_array_equal(rates("linear_times_warmup", 50), rates("linear", 50))


def test_constant():
    found = rates("constant", 20, warmup=4)
    np.testing.assert_allclose(found, PEAK * np.minimum(np.arange(21) / 4, 1), rtol=1e-6)


def test_cosine_falls_from_the_peak_to_zero():
    step = np.arange(101)
    expected = np.where(step < 20, step / 20, 0.5 * (1 + np.cos(np.pi * (step - 20) / 80))) * PEAK
    np.testing.assert_allclose(rates("cosine", 100, warmup=20), expected, rtol=1e-5, atol=1e-10)


def test_inverse_square_root_is_the_transformers():
    step = np.arange(1, 101)
    expected = np.minimum(step**-0.5, step * 16**-1.5) / 16**-0.5 * PEAK
    np.testing.assert_allclose(rates("inverse_square_root", 100, warmup=16)[1:], expected, rtol=1e-6)
    np.testing.assert_allclose(rates("inverse_square_root", 100)[1:], PEAK / np.sqrt(step), rtol=1e-6)


def test_slanted_triangular_is_ulmfits():
    step, cut = np.arange(201), 20
    share = np.where(step < cut, step / cut, 1 - (step - cut) / (cut * (1 / 0.1 - 1)))
    np.testing.assert_allclose(rates("slanted_triangular", 200), PEAK * (1 + share * 31) / 32, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 5, 19, 29])
def test_slanted_triangular_of_few_steps_stays_between_its_ends(steps):
    found = rates("slanted_triangular", steps)
    assert found.min() >= PEAK / 32 * (1 - 1e-5) and found.max() <= PEAK * (1 + 1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_finite_and_float32_for_a_run_of_one_step(name):
    rate = schedule(Optimizer(schedule=name), 1)(0)
    assert rate.dtype == np.float32 and np.isfinite(rate)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"warmup_steps": -1}, "warmup_steps of at least 0"),
        ({"schedule": "slanted_triangular", "warmup_steps": 5}, "set --optimizer.warmup_steps 0"),
    ],
)
def test_a_schedule_that_cannot_be_is_named(settings, message):
    with pytest.raises(UserError, match=message):
        schedule(Optimizer(**settings), 100)
