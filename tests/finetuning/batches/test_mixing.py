"""Rates against numbers worked out by hand, and draws that are at the rates in every epoch."""

import math

import numpy as np
import pytest

from plmjax.data import order
from plmjax.finetuning.batches.mixing import Mixing

SIZES = {"a": 100, "b": 25, "c": 4}
KEY = order.fold_in(7, 3)


@pytest.mark.parametrize(
    ("limit", "temperature", "rates"),
    [
        (1000, 1.0, [100 / 129, 25 / 129, 4 / 129]),
        (20, 1.0, [20 / 44, 20 / 44, 4 / 44]),
        (1000, 2.0, [10 / 17, 5 / 17, 2 / 17]),
        (16, 2.0, [4 / 10, 4 / 10, 2 / 10]),
        (1000, math.inf, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rates(limit: int, temperature: float, rates: list[float]) -> None:
    mixing = Mixing(SIZES, limit, temperature)
    np.testing.assert_allclose(mixing.rates(), rates, rtol=1e-12)
    drawn = np.concatenate([mixing.drawn(epoch, KEY) for epoch in range(40)])
    counts = np.histogram(drawn, bins=[0, 100, 125, 129])[0]
    epochs = 40 * sum(min(size, limit) for size in SIZES.values())
    assert np.abs(counts - epochs * np.array(rates)).max() <= 0.5  # rounded once, over all epochs together


def test_weights_take_the_place_of_sizes() -> None:
    mixing = Mixing(SIZES, 50, 1.0, {"c": 1.0, "a": 6.0, "b": 3.0})
    np.testing.assert_allclose(mixing.rates(), [0.6, 0.3, 0.1], rtol=1e-12)
    drawn = np.concatenate([mixing.drawn(epoch, KEY) for epoch in range(30)])
    counts = np.histogram(drawn, bins=[0, 100, 125, 129])[0]
    examples = 30 * (50 + 25 + 4)
    assert np.abs(counts - examples * mixing.rates()).max() <= 0.5
    portions = mixing.portions(30.0)
    assert [portion.share for portion in portions.values()] == pytest.approx([0.6, 0.3, 0.1])
    for portion, count, size in zip(portions.values(), counts, SIZES.values(), strict=True):
        assert portion.epochs * size == pytest.approx(count, abs=0.5)


def test_an_epoch_in_proportion_is_every_example_once() -> None:
    for epoch in range(3):
        assert sorted(Mixing(SIZES, 100, 1.0).drawn(epoch, KEY)) == list(range(129))


def test_an_example_comes_again_only_after_all_of_its_task() -> None:
    mixing = Mixing(SIZES, 20, 2.0)
    drawn = np.concatenate([mixing.drawn(epoch, KEY) for epoch in range(25)])
    for first, size in zip((0, 100, 125), SIZES.values(), strict=True):
        own = drawn[(drawn >= first) & (drawn < first + size)]
        passes = [sorted(own[begin : begin + size]) for begin in range(0, len(own) - size + 1, size)]
        assert len(passes) >= 3 and all(one == list(range(first, first + size)) for one in passes)
    assert own[:4].tolist() != own[4:8].tolist() or own[:4].tolist() != own[8:12].tolist()  # in other orders


def test_draws_follow_from_key_and_epoch_alone() -> None:
    mixing = Mixing(SIZES, 20, 1.0)
    np.testing.assert_array_equal(mixing.drawn(5, KEY), mixing.drawn(5, KEY))
    assert not np.array_equal(mixing.drawn(5, KEY), mixing.drawn(5, order.fold_in(8, 3)))
    assert not np.array_equal(mixing.drawn(5, KEY), mixing.drawn(6, KEY))
