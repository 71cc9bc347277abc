"""Masks and the schedule against NumPy."""

import jax
import numpy as np
import pytest

from plmjax.compression.pruning.masks import above, kth_largest, top_share, two_of_four
from plmjax.compression.pruning.schedule import Cubic

VALUES = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 7, 39, 40])
def test_the_value_of_a_rank_is_that_of_a_sort(count: int) -> None:
    rows = VALUES.reshape(3, 40).copy()
    rows[0, :20] = 0.25  # equal values
    rows[1, :4] = -0.0, 0.0, np.inf, -np.inf
    expected = -np.sort(-rows, axis=1)[:, count - 1]
    np.testing.assert_array_equal(np.asarray(jax.jit(kth_largest)(rows, count)), expected)


@pytest.mark.parametrize(("share", "kept"), [(0.3, 12), (0.999, 39), (1.0, 40), (0.0, 1)])
def test_the_largest_of_each_matrix_are_kept(share: float, kept: int) -> None:
    mask = np.asarray(top_share(VALUES, share, stacked=True))
    for values, own in zip(VALUES, mask, strict=True):
        assert own.sum() == kept and values[own].min() > values[~own].max(initial=-np.inf)
    whole = np.asarray(top_share(VALUES, share, stacked=False))
    assert whole.sum() == max(int(share * 120), 1)


def test_equal_values_are_kept_together() -> None:
    """Deviation: the released code breaks ties by a sort."""
    assert np.asarray(top_share(np.zeros((2, 4), np.float32), 0.5, stacked=True)).all()


def test_a_few_stay_above_a_threshold_that_none_reaches() -> None:
    values = np.arange(1000, dtype=np.float32).reshape(1, 1000)
    assert np.asarray(above(values, 2000.0, stacked=True)).sum() == 5
    assert np.asarray(above(values, 899.5, stacked=True)).sum() == 100


def test_two_of_each_four_inputs_are_kept() -> None:
    kernel = np.random.default_rng(1).normal(size=(2, 3, 4, 6)).astype(np.float32)  # [L N H D], inputs N H
    mask = two_of_four(kernel, 2, stacked=True)
    groups = mask.reshape(2, 3, 4, 6)
    assert (groups.sum(axis=2) == 2).all()
    magnitudes = np.abs(kernel)
    assert (np.where(mask, magnitudes, np.inf).min(axis=2) > np.where(mask, 0, magnitudes).max(axis=2)).all()


@pytest.mark.parametrize("step", [0, 99, 100, 350, 799, 800, 1000])
def test_the_schedule_is_the_released_one(step: int) -> None:
    """`schedule_threshold` of masked_run_glue.py, with a warm-up of 100 steps: 1 of them before, 2 of them after."""
    initial, final, warmup, before, after, total = 1.0, 0.15, 100, 1, 2, 1000
    if step <= before * warmup:
        expected = initial
    elif step > total - after * warmup:
        expected = final
    else:
        left = 1 - (step - before * warmup) / (total - (before + after) * warmup)
        expected = final + (initial - final) * left**3
    found = Cubic(initial, final, begin=0.1, end=0.8).at(step, total)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_places_may_be_all_of_the_run() -> None:
    assert [float(Cubic(1.0, 0.5, 0.0, 1.0).at(step, 10)) for step in (0, 10)] == [1.0, 0.5]


def test_a_value_at_the_threshold_is_not_above_it() -> None:
    """Two of 400 values, the largest, are kept in any case: with a threshold of 397 the two above it."""
    values = np.arange(400, dtype=np.float32).reshape(2, 1, 200)[::-1]
    for threshold, kept in ((397.0, [1, 2]), (195.0, [4, 200])):
        assert np.asarray(above(values, threshold, stacked=True)).sum(axis=(1, 2)).tolist() == kept[::-1]
