"""Shares of a mixture: every prefix of its rows at the shares, the same place for a row by any way, every mistake."""

import math
from fractions import Fraction

import numpy as np
import pytest

from plmjax.data import mixing
from plmjax.data.mixing import LONGEST_PERIOD, Mixture, Period
from tests.data.mistakes import refused

SOURCES = ("wiki=a", "books=b", "news=c")
COUNTS = [(1,), (2, 1), (5, 3, 400, 17, 1, 1, 2), (1,) * 12, (50_000, 15_000, 536)]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_every_prefix_is_within_a_row_of_the_shares(counts: tuple[int, ...]) -> None:
    period = Period(counts)
    assert period.length == sum(counts)
    rows = 2 * period.length + 3
    sources, earlier = period(np.arange(rows))
    given = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)
    exact = np.arange(1, rows + 1)[:, None] * np.array(counts) / period.length
    assert np.abs(given - exact).max() < 1
    np.testing.assert_array_equal(earlier, given[np.arange(rows), sources] - 1)
    for first in (0, 1, rows // 3, period.length, rows):
        np.testing.assert_array_equal(period.counts_after(first), given[first - 1] if first else 0 * given[0])


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"weights": ("wiki=1/3", "books=1e-1", "news=17/30")}, (10, 3, 17)),
        ({}, (225, 25, 1)),
        ({"limit": 5000}, (25, 25, 2)),
        ({"temperature": 2.0}, (15, 5, 1)),
        ({"temperature": 2.0, "limit": 2500}, (5, 5, 2)),
        ({"temperature": math.inf}, (1, 1, 1)),
    ],
)
def test_rows_of_a_period(settings: dict, rows: tuple[int, ...]) -> None:
    tokens = {"wiki": 90_000, "books": 10_000, "news": 400}
    assert Mixture(SOURCES, **settings).rows(tokens) == dict(zip(tokens, rows, strict=True))


def test_shares_without_small_numbers_are_rounded_to_the_longest_period() -> None:
    tokens = {"wiki": 2_345_678_901, "books": 812_345_677, "news": 3_000_001}
    for temperature in (1.0, 1.5, 3.0):
        rows = Mixture(SOURCES, temperature=temperature).rows(tokens)
        assert sum(rows.values()) == LONGEST_PERIOD and rows.keys() == tokens.keys()
        expected = mixing.rates(tuple(tokens.values()), temperature=temperature) * LONGEST_PERIOD
        assert np.abs(np.array(tuple(rows.values())) - expected).max() < 1
    # Of 65,536 rows: 29,998.78, 29,998.38, 5,534.75 and 4.10. The largest remainders are rounded up.
    shares = {name: Fraction(number) for name, number in zip("abcd", (300_007, 300_003, 55_351, 41), strict=True)}
    assert mixing.round_to_period(shares) == {"a": 29_999, "b": 29_998, "c": 5_535, "d": 4}
    refused(
        lambda: mixing.round_to_period({"a": Fraction(1), "b": Fraction(1, 10**7)}), "in 65,536 rows .. 1e-07 for b"
    )


SETTINGS = [
    ({"weights": ("wiki=0", "books=1", "news=1")}, "mixture.weights above 0 .. 'wiki=0' .. leave wiki out"),
    ({"weights": ("wiki=1", "boks=2", "news=1")}, "'boks=2' .. did you mean 'books'?"),
    ({"weights": ("wiki=1", "news=1")}, "none of books .. books=WEIGHT"),
    ({"weights": ("wiki=1", "books=1", "news=1", "wiki=2")}, "one weight of wiki .. two"),
    ({"weights": ("wiki=nan", "books=1", "news=1")}, "NAME=WEIGHT .. 'wiki=nan'"),
    ({"weights": ("wiki=1", "books=1", "news=1"), "limit": 2}, "weights or .. limit .. both"),
    ({"temperature": 0.5}, "--data.mixture.temperature of at least 1 .. 0.5"),
    ({"limit": -1}, "--data.mixture.limit of at least 0 .. -1"),
    ({"sources": ("wiki=",)}, "NAME=FOLDER .. 'wiki='"),
    ({"sources": ("wiki=a", "wiki=b")}, "every name once .. 'wiki=b'"),
    ({"sources": (), "temperature": 2.0}, "--data.mixture.sources with the other settings"),
    ({}, "source news .. leave it out"),
]


@pytest.mark.parametrize(("settings", "parts"), SETTINGS, ids=str)
def test_mistakes(settings: dict, parts: str) -> None:
    refused(lambda: Mixture(**({"sources": SOURCES} | settings)).rows({"wiki": 5, "books": 3, "news": 0}), parts)
    assert Mixture(("wiki=gs://bucket/a=b:2",)).paths == {"wiki": "gs://bucket/a=b:2"}  # a folder may have any name
