"""The order of rows: every row once an epoch, found in O(1); draws with the distributions they promise; two levels."""

import numpy as np
import pytest

from plmjax.data import order
from plmjax.data.remote import LaneOrder, TwoLevelOrder


@pytest.mark.parametrize("size", [1, 2, 7, 101, 4096])
def test_permute_is_a_permutation_for_every_key(size):
    permutations = [order.permute(np.arange(size), size, key) for key in range(3)]
    for permutation in permutations:
        np.testing.assert_array_equal(np.sort(permutation), np.arange(size))
    if size >= 100:
        assert not np.array_equal(permutations[0], permutations[1])
        assert abs(np.corrcoef(np.arange(size), permutations[0])[0, 1]) < 0.3


def test_places_answer_alone_have_sizes_and_keys_of_their_own_and_a_huge_range() -> None:
    huge = (1 << 40) + 7
    places, sizes = np.array([4, 0, 3, 4, 11, 0, huge - 1]), np.array([5, 1, 12, 5, 12, huge, huge])
    keys, tosses = np.arange(7) + 7, np.array([130, 0, 64, 3, 65, 1, 9])
    alone = [int(order.permute(np.array([p]), n, k)[0]) for p, n, k in zip(places, sizes, keys, strict=True)]
    assert order.permute(places, sizes, keys).tolist() == alone and all(0 <= value < huge for value in alone)
    heads = [int(order.binomial(keys[i : i + 1], tosses[i : i + 1])[0]) for i in range(7)]
    assert order.binomial(keys, tosses).tolist() == heads and len(set(heads)) > 3


def test_a_place_receives_every_row_equally_often_whatever_its_neighbour_has():
    size, keys = 20, 40_000
    first, second = (order.permute(np.full(keys, place), size, np.arange(keys)) for place in (4, 5))
    for counts, degrees, most in (
        (np.bincount(first, minlength=size), size, 44),
        (np.bincount((second - first) % size, minlength=size)[1:], size - 1, 43),
    ):  # chi square, 1 in 1000
        assert np.sum((counts - keys / degrees) ** 2 / (keys / degrees)) < most


@pytest.mark.parametrize("tosses", [1, 64, 65])
def test_heads_are_binomial(tosses):
    keys = order.fold_in(11, np.arange(40_000))
    count = order.binomial(keys, np.full(len(keys), tosses))
    assert count.min() >= 0 and count.max() <= tosses
    assert abs(count.mean() - tosses / 2) < 4 * np.sqrt(tosses / 4 / len(keys))
    assert abs(count.var() / (tosses / 4) - 1) < 0.04
    np.testing.assert_array_equal(order.binomial(keys, np.zeros(len(keys), np.int64)), 0)


def test_numbers_are_the_same_in_every_version():
    """A run goes on in the order that it began with."""
    assert order.fold_in(7, np.arange(2)).tolist() == [13309476754707697221, 11984929618412882174]
    assert order.randint(order.fold_in(7, np.arange(8)), np.arange(1, 9)).tolist() == [0, 1, 1, 2, 1, 1, 6, 7]
    first, second = [6, 5, 8, 4, 2, 10, 1, 3, 9, 7, 0], [3, 0, 1, 5, 8, 9, 4, 6, 7, 10, 2]
    assert order.shuffle(np.arange(22), 11, 3).tolist() == [*first, *second]


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
