"""Learning rates against the formulas of their papers and released code, computed in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.training.optimizers.schedules import (
    Constant,
    Cosine,
    InverseRootTime,
    InverseSquareRoot,
    InverseTime,
    Linear,
    LinearTimesWarmup,
    Plateau,
    Polynomial,
    Schedule,
    SlantedTriangular,
)
from tests.optional import torch

PEAK = 3e-4


def rates(schedule: Schedule, steps: int) -> np.ndarray:
    function = schedule.rates(PEAK, steps)
    return np.asarray(jax.jit(jax.vmap(function))(np.arange(steps + 1, dtype=np.int32)), np.float64)


def test_linear_is_berts_with_the_jump_at_the_end_of_the_warmup():
    step = np.arange(101)
    expected = np.where(step < 10, PEAK * step / 10, PEAK * (1 - step / 100))
    found = rates(Linear(10), steps=100)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[0] == 0 and found[-1] == 0
    assert found[9] == pytest.approx(0.9 * PEAK) and found[10] == pytest.approx((1 - 10 / 100) * PEAK)


def test_linear_jumps_down_by_a_tenth_where_the_warmup_is_a_tenth():
    found = rates(Linear(1000), steps=10_000)
    assert found[999] == pytest.approx(0.999 * PEAK, rel=1e-6)
    assert found[1000] == pytest.approx(0.9 * PEAK, rel=1e-6)


def test_a_long_warmup_keeps_its_first_rates_exact():
    function = Linear(10_000).rates(1e-4, 1_000_000)
    assert float(function(1)) == pytest.approx(1e-8, rel=1e-6)


def test_linear_without_warmup_starts_at_the_peak():
    np.testing.assert_allclose(rates(Linear(), 50), PEAK * (1 - np.arange(51) / 50), rtol=1e-6)


def test_linear_times_warmup_is_electras():
    """google-research/electra model/optimization.py: polynomial decay from step 0, times min(1, step / warmup)."""
    step = np.arange(101)
    expected = PEAK * (1 - step / 100) * np.minimum(1, step / 10)
    found = rates(LinearTimesWarmup(10), steps=100)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[10] == pytest.approx(0.9 * PEAK) and found[:11].max() == found[10], "nothing jumps"
    np.testing.assert_array_equal(rates(LinearTimesWarmup(), 50), rates(Linear(), 50))


def test_constant():
    found = rates(Constant(4), 20)
    np.testing.assert_allclose(found, PEAK * np.minimum(np.arange(21) / 4, 1), rtol=1e-6)


def test_cosine_falls_from_the_peak_to_zero():
    step = np.arange(101)
    expected = np.where(step < 20, step / 20, 0.5 * (1 + np.cos(np.pi * (step - 20) / 80))) * PEAK
    np.testing.assert_allclose(rates(Cosine(20), 100), expected, rtol=1e-5, atol=1e-10)


def test_polynomial_is_fairseqs():
    """fairseq polynomial_decay_schedule.py: after the warm-up, the share of the steps that are left to a power."""
    step = np.arange(101)
    expected = np.where(step < 20, step / 20, np.maximum(1 - (step - 20) / 80, 0) ** 3) * PEAK
    np.testing.assert_allclose(rates(Polynomial(20, power=3.0), 100), expected, rtol=1e-5, atol=1e-12)
    with pytest.raises(UserError, match="power of at least 0, found -1"):
        Polynomial(power=-1.0)


def test_inverse_square_root_is_the_transformers():
    step = np.arange(1, 101)
    expected = np.minimum(step**-0.5, step * 16**-1.5) / 16**-0.5 * PEAK
    np.testing.assert_allclose(rates(InverseSquareRoot(16), 100)[1:], expected, rtol=1e-6)
    np.testing.assert_allclose(rates(InverseSquareRoot(), 100)[1:], PEAK / np.sqrt(step), rtol=1e-6)


def test_inverse_time_is_nnlms():
    np.testing.assert_allclose(rates(InverseTime(decay=0.25), 100), PEAK / (1 + 0.25 * np.arange(101)), rtol=1e-6)
    published = InverseTime().rates(1e-3, 20_000_000)(20_000_000)
    assert float(published) == pytest.approx(1e-3 / 1.2, rel=1e-6)


def test_inverse_root_time_is_that_of_cross_view_training():
    """cvt_text model/multitask_model.py: both factors from step 0 on."""
    step = np.arange(101)
    expected = PEAK * np.minimum(step, 20) / 20 / (1 + 0.3 * np.sqrt(step))
    np.testing.assert_allclose(rates(InverseRootTime(20, 0.3), 100), expected, rtol=1e-6)


def test_slanted_triangular_is_ulmfits():
    step, cut = np.arange(201), 20
    share = np.where(step < cut, step / cut, 1 - (step - cut) / (cut * (1 / 0.1 - 1)))
    np.testing.assert_allclose(rates(SlantedTriangular(), 200), PEAK * (1 + share * 31) / 32, rtol=1e-5)


def test_slanted_triangular_cuts_at_a_whole_step():
    """0.13 of 55 steps are 7.15, and of 60 they are 7.8: the rate rises for 7."""
    for steps in (55, 60):
        step = np.arange(steps + 1)
        share = np.where(step < 7, step / 7, 1 - (step - 7) / (steps - 7))
        found = rates(SlantedTriangular(0.13, ratio=5), steps)
        np.testing.assert_allclose(found, PEAK * (1 + share * 4) / 5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 5, 19, 29])
def test_slanted_triangular_of_few_steps_stays_between_its_ends(steps):
    found = rates(SlantedTriangular(), steps)
    assert found.min() >= PEAK / 32 * (1 - 1e-5) and found.max() <= PEAK * (1 + 1e-6)


@pytest.mark.parametrize("name", Schedule.choices())
def test_every_schedule_is_finite_and_float32_for_a_run_of_one_step(name):
    rate = Schedule.choices()[name]().rates(PEAK, 1)(0)
    assert rate.dtype == np.float32 and np.isfinite(rate)


def test_inverse_square_root_is_t5s():
    """1 / sqrt(max(step, k)) with k = 16."""
    expected = 1 / np.sqrt(np.maximum(np.arange(101), 16))
    found = jax.vmap(InverseSquareRoot(constant_steps=16).rates(1 / np.sqrt(16), 100))(np.arange(101))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("warmup", "constant"), [(5, 16), (16, 5), (16, 16)])
def test_inverse_square_root_decays_after_the_later_of_its_two_ends(warmup, constant):
    step = np.arange(1, 61)
    expected = PEAK * np.where(step < warmup, step / warmup, 4 / np.sqrt(np.maximum(step, 16)))
    np.testing.assert_allclose(rates(InverseSquareRoot(warmup, constant), 60)[1:], expected, rtol=1e-6)


def test_warm_ups_as_long_as_the_run():
    """They end with it; what comes after has no step."""
    for schedule in (Cosine(8), Polynomial(8), Cosine(9), Polynomial(9)):
        found = rates(schedule, 8)
        np.testing.assert_allclose(found[:8], PEAK * np.arange(8) / schedule.warmup_steps, rtol=1e-6)


def test_defaults_of_a_plateau_are_torchs():
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
    found = Plateau()
    assert (found.reduction, found.patience, found.threshold) == (theirs.factor, theirs.patience, theirs.threshold)
    assert theirs.threshold_mode == "rel" and theirs.cooldown == 0


def test_plateau_is_torchs():
    settings = {"patience": 2, "threshold": 0.01}
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, **settings)
    plateau = Plateau(reduction=0.5, **settings)
    update, state = jax.jit(plateau.on_evaluation), plateau.start()
    values = [5.0, 4.0, 3.99, 3.98, 3.97, 3.0, 3.1, float("nan"), 3.2, 3.3, 3.4, 3.5, 2.0, 2.1, 2.0, 1.99, 1.0]
    for value in values:
        reference.step(value)
        state = update(state, np.float32(value))
        assert float(plateau.factor(state)) == optimizer.param_groups[0]["lr"], value
    assert float(plateau.factor(state)) == 1 / 16


@pytest.mark.parametrize(
    ("schedule", "settings", "message"),
    [
        (Linear, {"warmup_steps": -1}, "optimizer.schedule.warmup_steps of at least 0"),
        (SlantedTriangular, {"cut_fraction": 1.0}, "optimizer.schedule.cut_fraction from 0 to below 1"),
        (SlantedTriangular, {"ratio": 0.5}, "optimizer.schedule.ratio of at least 1"),
        (InverseTime, {"decay": -1e-8}, "optimizer.schedule.decay of at least 0"),
        (Plateau, {"patience": -1}, "optimizer.schedule.patience of at least 0"),
    ],
)
def test_a_schedule_that_cannot_be_is_named(schedule, settings, message):
    with pytest.raises(UserError, match=message):
        schedule(**settings)


@pytest.mark.parametrize("schedule", [Linear(), Polynomial(power=2.0), Polynomial(power=0.5, warmup_steps=3), Cosine()])
def test_a_rate_stays_zero_after_the_end_of_the_run(schedule) -> None:
    rate = schedule.rates(2.0, 10)
    assert [float(rate(jnp.int32(step))) for step in (10, 11, 15)] == [0, 0, 0]
    assert rate(jnp.int32(9)) > 0


def test_a_plateau_compares_with_the_best_value_that_was_an_improvement() -> None:
    """A value that is smaller by exactly the threshold is no improvement."""
    schedule = Plateau(threshold=0.25, patience=5)
    state, found = schedule.start(), []
    for value in (8.0, 7.0, 6.0, 5.9):
        state = schedule.on_evaluation(state, jnp.float32(value))
        found.append((float(state.best), int(state.waited)))
    assert found == [(8, 0), (8, 1), (8, 2), (pytest.approx(5.9), 0)]
