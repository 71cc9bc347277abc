"""Packing: every sequence in one row that has room for it, and each row as its sequences stand in it."""

import numpy as np
import pytest

from plmjax.data import packing


def test_rows_are_padded_to_the_next_power_of_two_or_three_quarters_of_it():
    """A length that is such a width is not padded, and no row is longer than the model's positions."""
    widths = {1: 16, 16: 16, 17: 24, 24: 24, 25: 32, 33: 48, 65: 96}
    assert {length: packing.padded_width(length, None) for length in widths} == widths
    assert [packing.padded_width(length, 40) for length in (24, 33, 40)] == [24, 40, 40]


@pytest.mark.parametrize("most", [1, 3])
def test_packing_deals_every_sequence_to_one_row_that_holds_it(most):
    lengths = np.random.default_rng(0).integers(5, 129, 3000)
    sequence, sizes = packing.pack(lengths, 128, most)
    np.testing.assert_array_equal(np.sort(sequence), np.arange(3000))
    assert sizes.sum() == 3000 and sizes.min() >= 1 and sizes.max() <= most
    rows = np.add.reduceat(lengths[sequence], np.cumsum(sizes) - sizes)
    assert rows.max() <= 128
    if most > 2:
        assert lengths.sum() / (128 * len(rows)) > 0.97


def test_padding_on_the_left_is_before_the_sequences():
    begins, segment_ids, positions = packing.place(np.array([[2, 0, 3], [1, 4, 2]]), 7, "left")
    assert begins[0, [0, 2]].tolist() == [2, 4] and begins[1].tolist() == [0, 1, 5]
    assert segment_ids.tolist() == [[0, 0, 1, 1, 3, 3, 3], [1, 2, 2, 2, 2, 3, 3]]
    assert positions.tolist() == [[0, 0, 0, 1, 0, 1, 2], [0, 0, 1, 2, 3, 0, 1]]


def test_the_longest_that_fits_comes_next_and_equal_ones_in_order():
    for lengths, sequence, sizes in (
        ([2, 7, 3, 5, 3, 2, 10], [6, 1, 2, 3, 4, 0, 5], [1, 2, 3, 1]),
        ([2, 2, 2, 2, 2], [0, 1, 2, 3, 4], [3, 2]),
        ([], [], []),
        ([10], [0], [1]),
    ):
        found = packing.pack(np.array(lengths, np.int64), 10, 3)
        assert [array.tolist() for array in found] == [sequence, sizes]
    table = packing.pack_table(np.array([3, 8, 5, 1]), 8, 2)
    assert sorted(map(sorted, table.tolist())) == [[-1, 1], [-1, 3], [0, 2]]
