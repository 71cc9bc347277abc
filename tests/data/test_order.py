"""The order of rows: every row once an epoch, found in O(1); draws with the distributions they promise."""

import numpy as np
import pytest

from plmjax.data import order


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


def test_draws_are_uniform_and_depend_on_key_and_number():
    bits = order.fold_in(7, np.arange(100_000))
    counts = np.bincount(order.randint(bits, 10), minlength=10)
    assert np.sum((counts - 10_000) ** 2 / 10_000) < 28  # 9 degrees: 1 in 1000
    assert abs(order.bernoulli(bits, 0.1).mean() - 0.1) < 0.003
    assert len(np.unique(np.concatenate([bits, order.fold_in(8, np.arange(100_000))]))) == 200_000


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
