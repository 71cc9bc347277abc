"""The order of two levels: every number of an epoch once, pure, and windows that follow each other."""

import numpy as np
import pytest

from plmjax.data import order
from plmjax.data.remote import LaneOrder, TwoLevelOrder

VISITS = np.array([7, 0, 5, 9, 1, 8, 6, 4, 10, 3, 2])


def make(window: int = 4, key: int = 3, visits: np.ndarray = VISITS) -> TwoLevelOrder:
    return TwoLevelOrder(visits, window, order.fold_in(key, 0))


@pytest.mark.parametrize("window", [1, 4, 10, 100])
def test_an_epoch_takes_its_share_of_every_piece_once(window: int) -> None:
    made = make(window)
    assert made.rows == VISITS.sum()
    for epoch in range(3):
        _, pieces, numbers = made.places(np.arange(made.rows) + epoch * made.rows)
        found = sorted(zip(pieces.tolist(), numbers.tolist(), strict=True))
        assert found == [(p, epoch * n + i) for p, n in enumerate(VISITS.tolist()) for i in range(n)]


@pytest.mark.parametrize(("window", "fewest_rows"), [(1, 1), (4, 1 + 2 + 3), (10, 55)])
def test_windows_follow_each_other_and_hold_their_pieces_alone(window: int, fewest_rows: int) -> None:
    made = make(window)
    assert made.window_rows == fewest_rows
    windows, pieces, _ = made.places(np.arange(3 * made.rows))
    assert windows[0] == 0 and set(np.diff(windows).tolist()) <= {0, 1} and windows[-1] == 3 * made.windows - 1
    for number in range(3 * made.windows):
        own = made.pieces(number)
        assert sorted(own.tolist()) == sorted(set(pieces[windows == number].tolist()))
        assert made.window_pieces - 1 <= len(own) <= made.window_pieces <= window
        assert np.count_nonzero(windows == number) >= made.window_rows
    assert 1 not in pieces  # too short for a row


def test_a_place_depends_on_the_key_and_on_itself_alone() -> None:
    everything = make().places(np.arange(200))
    for start in (0, 54, 55, 199):
        for all_places, alone in zip(everything, make().places(np.array([start])), strict=True):
            assert all_places[start] == alone[0]
    assert not np.array_equal(everything.pieces, make(key=4).places(np.arange(200)).pieces)
    one = make(window=1, visits=np.array([20, 20]))  # each window of an epoch has an order of its own, two an epoch
    orders = one.places(np.arange(4 * 20)).numbers.reshape(4, 20) % 20
    assert (np.sort(orders) == np.arange(20)).all() and len({tuple(numbers) for numbers in orders.tolist()}) == 4
    wide = make(window=100)
    first, second = wide.places(np.arange(2 * wide.rows)).pieces.reshape(2, -1)
    assert not np.array_equal(first, second) and np.count_nonzero(np.diff(first)) > 0.7 * wide.rows
    far = wide.places(np.array([10**15]))
    assert far.windows[0] // wide.windows == far.numbers[0] // VISITS[far.pieces[0]] == 10**15 // wide.rows


def test_each_row_of_a_piece_is_used_once_before_one_is_used_again() -> None:
    """A visit continues where the last one ended, also where a piece has more rows than a visit takes."""
    made, counts = make(), 3 * VISITS - 1
    _, pieces, numbers = made.places(np.arange(6 * made.rows))
    for piece in np.flatnonzero(VISITS):
        rows = order.shuffle(np.sort(numbers[pieces == piece]), counts[piece], order.fold_in(0, piece))
        assert sorted(rows[: counts[piece]].tolist()) == list(range(counts[piece]))
        assert np.ptp(np.bincount(rows, minlength=counts[piece])) <= 1


@pytest.mark.parametrize(("window", "batch_size", "lanes"), [(1, 8, 1), (4, 8, 4), (7, 12, 6), (100, 6, 6), (5, 7, 1)])
def test_lanes_divide_a_batch_and_the_pieces(window: int, batch_size: int, lanes: int) -> None:
    made = LaneOrder(VISITS, window, order.fold_in(3, 0), batch_size)
    assert made.lanes == lanes == len(made.orders) and made.rows == VISITS.sum()
    own = [set(one.visited.tolist()) for one in made.orders]
    assert sorted(piece for pieces in own for piece in pieces) == [p for p, n in enumerate(VISITS) if n]
    rows = [one.rows for one in made.orders]
    assert max(rows) - min(rows) <= 2 and sum(rows) == made.rows
    pieces = [min(window // lanes, len(one.visited)) for one in made.orders]
    assert [one.windows for one in made.orders] == [-(-len(a) // b) for a, b in zip(own, pieces, strict=True)]
    found, places = made.places(np.arange(5 * batch_size))
    assert np.array_equal(found, np.tile(np.repeat(np.arange(lanes), batch_size // lanes), 5))
    for lane, one in enumerate(made.orders):
        there = one.places(np.arange(5 * batch_size // lanes))
        assert all(np.array_equal(a[found == lane], b) for a, b in zip(places, there, strict=True))
