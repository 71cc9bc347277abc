"""The order of rows: every row once an epoch, found in O(1); draws with the distributions they promise."""

import numpy as np
import pytest

from plmjax.data import order


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 101, 4096, 12_345])
def test_permute_is_a_permutation_for_every_key(size):
    permutations = [order.permute(np.arange(size), size, key) for key in range(3)]
    for permutation in permutations:
        np.testing.assert_array_equal(np.sort(permutation), np.arange(size))
    if size >= 100:
        assert not np.array_equal(permutations[0], permutations[1])
        assert abs(np.corrcoef(np.arange(size), permutations[0])[0, 1]) < 0.3


def test_permute_answers_single_places_of_a_huge_range():
    size = (1 << 40) + 7
    places = np.array([0, 1, 12_345, size - 1])
    found = order.permute(places, size, 5)
    assert len(set(found.tolist())) == 4 and found.min() >= 0 and found.max() < size
    for place, value in zip(places, found, strict=True):
        assert order.permute(np.array([place]), size, 5)[0] == value


def test_a_place_receives_every_row_equally_often():
    size, keys = 50, 20_000
    found = order.permute(np.full(keys, 17), size, np.arange(keys))
    counts = np.bincount(found, minlength=size)
    assert np.sum((counts - keys / size) ** 2 / (keys / size)) < 85  # chi square, 49 degrees: 1 in 1000


def test_neighbouring_places_are_independent():
    size, keys = 20, 40_000
    first = order.permute(np.full(keys, 4), size, np.arange(keys))
    second = order.permute(np.full(keys, 5), size, np.arange(keys))
    counts = np.bincount((second - first) % size, minlength=size)[1:]
    assert np.sum((counts - keys / (size - 1)) ** 2 / (keys / (size - 1))) < 43  # 18 degrees: 1 in 1000


def test_epochs_follow_without_a_seam_and_differ():
    size = 97
    numbers = order.shuffled(np.arange(5 * size), size, 3)
    epochs = numbers.reshape(5, size)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(size), (5, 1)))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5
    np.testing.assert_array_equal(order.shuffled(np.arange(90, 110), size, 3), numbers[90:110])


def test_draws_are_uniform_and_depend_on_key_and_number():
    bits = order.fold_in(7, np.arange(100_000))
    counts = np.bincount(order.randint(bits, 10), minlength=10)
    assert np.sum((counts - 10_000) ** 2 / 10_000) < 28  # 9 degrees: 1 in 1000
    assert abs(order.bernoulli(bits, 0.1).mean() - 0.1) < 0.003
    assert len(np.unique(np.concatenate([bits, order.fold_in(8, np.arange(100_000))]))) == 200_000


@pytest.mark.parametrize("tosses", [1, 10, 64, 65, 200])
def test_heads_are_binomial(tosses):
    keys = order.fold_in(11, np.arange(40_000))
    count = order.binomial(keys, np.full(len(keys), tosses))
    assert count.min() >= 0 and count.max() <= tosses
    assert abs(count.mean() - tosses / 2) < 4 * np.sqrt(tosses / 4 / len(keys))
    assert abs(count.var() / (tosses / 4) - 1) < 0.04
    np.testing.assert_array_equal(order.binomial(keys, np.zeros(len(keys), np.int64)), 0)


def test_each_place_has_a_size_and_a_key_of_its_own():
    places, sizes, keys = np.array([4, 0, 3, 4, 11]), np.array([5, 1, 12, 5, 12]), np.arange(5) + 7
    alone = [int(order.permute(np.array([p]), n, k)[0]) for p, n, k in zip(places, sizes, keys, strict=True)]
    assert order.permute(places, sizes, keys).tolist() == alone


def test_heads_of_unequal_numbers_of_tosses_are_those_of_each_alone():
    keys, tosses = order.fold_in(11, np.arange(6)), np.array([130, 0, 64, 3, 65, 1])
    alone = [int(order.binomial(keys[i : i + 1], tosses[i : i + 1])[0]) for i in range(6)]
    assert order.binomial(keys, tosses).tolist() == alone and len(set(alone)) > 3


def test_numbers_are_the_same_in_every_version():
    """A run goes on in the order that it began with."""
    assert order.fold_in(7, np.arange(2)).tolist() == [13309476754707697221, 11984929618412882174]
    assert order.randint(order.fold_in(7, np.arange(8)), np.arange(1, 9)).tolist() == [0, 1, 1, 2, 1, 1, 6, 7]
    first, second = [6, 5, 8, 4, 2, 10, 1, 3, 9, 7, 0], [3, 0, 1, 5, 8, 9, 4, 6, 7, 10, 2]
    assert order.shuffled(np.arange(22), 11, 3).tolist() == [*first, *second]
