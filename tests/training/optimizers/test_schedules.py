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
    WarmupStableDecay,
)
from tests.optional import torch

PEAK = 3e-4


def rates(schedule: Schedule, steps: int) -> np.ndarray:
    function = schedule.rates(PEAK, steps)
    return np.asarray(jax.jit(jax.vmap(function))(np.arange(steps + 1, dtype=np.int32)), np.float64)


def slanted(step: np.ndarray, cut: int, steps: int, ratio: float) -> np.ndarray:
    return (1 + np.where(step < cut, step / cut, 1 - (step - cut) / (steps - cut)) * (ratio - 1)) / ratio


FORMULAS = {
    # With the jump at the end of the warm-up; without one it starts at the peak.
    "BERT": (Linear(10), 100, lambda n: np.where(n < 10, n / 10, 1 - n / 100)),
    "BERT, published": (Linear(1000), 10_000, lambda n: np.where(n < 1000, n / 1000, 1 - n / 10_000)),
    "linear": (Linear(), 50, lambda n: 1 - n / 50),
    # google-research/electra model/optimization.py: polynomial decay from step 0, times min(1, step / warmup)
    "ELECTRA": (LinearTimesWarmup(10), 100, lambda n: (1 - n / 100) * np.minimum(1, n / 10)),
    "ELECTRA without warm-up": (LinearTimesWarmup(), 50, lambda n: 1 - n / 50),
    "constant": (Constant(4), 20, lambda n: np.minimum(n / 4, 1)),
    "cosine": (Cosine(20), 100, lambda n: np.where(n < 20, n / 20, 0.5 * (1 + np.cos(np.pi * (n - 20) / 80)))),
    # fairseq polynomial_decay_schedule.py: after the warm-up, the share of the steps that are left to a power
    "fairseq": (
        Polynomial(20, power=3.0), 100, lambda n: np.where(n < 20, n / 20, np.maximum(1 - (n - 20) / 80, 0) ** 3)
    ),
    "Transformer": (InverseSquareRoot(16), 100, lambda n: np.minimum((n + 1e-9) ** -0.5, n * 16**-1.5) / 16**-0.5),
    "inverse square root": (InverseSquareRoot(), 100, lambda n: 1 / np.sqrt(np.maximum(n, 1))),
    "after the later of two ends": (
        InverseSquareRoot(5, 16), 60, lambda n: np.where(n < 5, n / 5, 4 / np.sqrt(np.maximum(n, 16)))
    ),
    "T5": (InverseSquareRoot(constant_steps=16), 100, lambda n: 4 / np.sqrt(np.maximum(n, 16))),
    "NNLM": (InverseTime(decay=0.25), 100, lambda n: 1 / (1 + 0.25 * n)),
    # cvt_text model/multitask_model.py: both factors from step 0 on
    "cross-view": (InverseRootTime(20, 0.3), 100, lambda n: np.minimum(n, 20) / 20 / (1 + 0.3 * np.sqrt(n))),
    "stable": (WarmupStableDecay(10), 100, lambda n: np.minimum(n / 10, 1)),
    "stable, then linear": (
        WarmupStableDecay(10, 40), 100, lambda n: np.where(n < 10, n / 10, np.minimum(1, (100 - n) / 40))
    ),
    "ModernBERT": (
        WarmupStableDecay(0, 50, "one_minus_sqrt", 0.001), 50, lambda n: 0.001 + 0.999 * (1 - np.sqrt(n / 50))
    ),
    "cosine to a floor": (
        WarmupStableDecay(0, 40, "cosine", 0.1), 60,
        lambda n: 0.1 + 0.45 * (1 + np.cos(np.pi * np.maximum(n - 20, 0) / 40)),
    ),
    "ULMFiT": (SlantedTriangular(), 200, lambda n: slanted(n, 20, 200, 32)),
    # 0.13 of 55 steps are 7.15, and of 60 they are 7.8: the rate rises for 7.
    "ULMFiT, 55 steps": (SlantedTriangular(0.13, ratio=5), 55, lambda n: slanted(n, 7, 55, 5)),
    "ULMFiT, 60 steps": (SlantedTriangular(0.13, ratio=5), 60, lambda n: slanted(n, 7, 60, 5)),
}  # fmt: skip
"""Schedule, its steps, and its rate at every step relative to the peak."""


@pytest.mark.parametrize("name", FORMULAS)
def test_a_schedule_is_its_formula(name):
    schedule, steps, formula = FORMULAS[name]
    close = (
        {"rtol": 1e-5, "atol": 1e-10}
        if isinstance(schedule, Cosine | Polynomial | SlantedTriangular | WarmupStableDecay)
        else {"rtol": 1e-6}
    )
    np.testing.assert_allclose(rates(schedule, steps), PEAK * formula(np.arange(steps + 1)), **close)


def test_rates_of_long_and_of_short_runs_are_exact():
    """A warm-up as long as the run ends with it; after the end of a run its rate stays 0."""
    assert float(Linear(10_000).rates(1e-4, 1_000_000)(1)) == pytest.approx(1e-8, rel=1e-6)
    assert float(InverseTime().rates(1e-3, 20_000_000)(20_000_000)) == pytest.approx(1e-3 / 1.2, rel=1e-6)
    for schedule in (Cosine(8), Polynomial(8), Cosine(9), Polynomial(9)):
        np.testing.assert_allclose(rates(schedule, 8)[:8], PEAK * np.arange(8) / schedule.warmup_steps, rtol=1e-6)
    for steps in (1, 5, 19, 29):
        found = rates(SlantedTriangular(), steps)
        assert found.min() >= PEAK / 32 * (1 - 1e-5) and found.max() <= PEAK * (1 + 1e-6)
    for schedule in (Linear(), Polynomial(power=0.5, warmup_steps=3), Cosine()):
        assert [float(schedule.rates(2.0, 10)(jnp.int32(step))) for step in (10, 11, 15)] == [0, 0, 0]
    for kind in Schedule.choices().values():
        rate = kind().rates(PEAK, 1)(0)
        assert rate.dtype == np.float32 and np.isfinite(rate)


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
    theirs, found = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), Plateau()
    assert (found.reduction, found.patience, found.threshold) == (theirs.factor, theirs.patience, theirs.threshold)


@pytest.mark.parametrize(
    ("schedule", "settings", "message"),
    [
        (Linear, {"warmup_steps": -1}, "optimizer.schedule.warmup_steps of at least 0"),
        (SlantedTriangular, {"cut_fraction": 1.0}, "optimizer.schedule.cut_fraction from 0 to below 1"),
        (SlantedTriangular, {"ratio": 0.5}, "optimizer.schedule.ratio of at least 1"),
        (WarmupStableDecay, {"floor": 1.0}, "optimizer.schedule.floor from 0 to below 1"),
        (WarmupStableDecay, {"shape": "sqrt"}, "optimizer.schedule.shape, found 'sqrt'"),
        (WarmupStableDecay, {"warmup_steps": 10, "decay_steps": 91}, "decay of at most 90 steps, .* of 10, found 91"),
    ],
)
def test_a_schedule_that_cannot_be_is_named(schedule, settings, message):
    with pytest.raises(UserError, match=message):
        schedule(**settings).rates(PEAK, 100)
