"""Packing: every sequence in one row that has room for it, and each row as its sequences stand in it."""

import numpy as np
import pytest

from plmjax.data import packing


def test_rows_are_padded_to_the_next_power_of_two_or_three_quarters_of_it():
    """Of a length that is such a width not at all, and never beyond the model's positions."""
    widths = {1: 16, 16: 16, 17: 24, 24: 24, 25: 32, 32: 32, 33: 48, 48: 48, 49: 64, 65: 96, 97: 128}
    assert {length: packing.padded_width(length, None) for length in widths} == widths
    assert [packing.padded_width(length, 40) for length in (24, 33, 40)] == [24, 40, 40]


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_packing_deals_every_sequence_to_one_row_that_holds_it(most):
    lengths = np.random.default_rng(0).integers(5, 129, 3000)
    sequence, sizes = packing.pack(lengths, 128, most)
    np.testing.assert_array_equal(np.sort(sequence), np.arange(3000))
    assert sizes.sum() == 3000 and sizes.min() >= 1 and sizes.max() <= most
    rows = np.add.reduceat(lengths[sequence], np.cumsum(sizes) - sizes)
    assert rows.max() <= 128
    if most > 2:
        assert lengths.sum() / (128 * len(rows)) > 0.97


def test_packing_of_nothing_and_of_one():
    assert [array.tolist() for array in packing.pack(np.array([], np.int64), 128, 2)] == [[], []]
    assert [array.tolist() for array in packing.pack(np.array([128]), 128, 2)] == [[0], [1]]


def test_a_row_is_its_sequences_side_by_side_and_padding():
    random = np.random.default_rng(0)
    lengths = random.integers(0, 6, (20, 3))
    texts = [[np.arange(length) + 100 * (slot + 1) for slot, length in enumerate(row)] for row in lengths]
    begins, segment_ids, positions = packing.place(lengths, 16)
    out = np.full((20, 16), -1)
    row, slot = np.nonzero(lengths)
    packing.copy(row, begins[row, slot], (texts[b][k] for b, k in zip(row, slot, strict=True)), out)
    for b, sequences in enumerate(texts):
        padding = 16 - sum(map(len, sequences))
        assert out[b].tolist() == [*np.concatenate(sequences), *[-1] * padding]
        assert positions[b].tolist() == [*np.concatenate(sequences) % 100, *[0] * padding]
        assert segment_ids[b].tolist() == [*np.concatenate(sequences) // 100, *[0] * padding]
    assert {array.dtype for array in (segment_ids, positions)} == {np.dtype(np.int32)}


def test_no_rows_at_all():
    begins, segment_ids, positions = packing.place(np.zeros((0, 2), np.int64), 8)
    assert (begins.shape, segment_ids.shape, positions.shape) == ((0, 2), (0, 8), (0, 8))


def test_a_table_names_the_sequences_of_each_row():
    table = packing.packed(np.array([3, 8, 5, 1]), 8, 2)
    assert sorted(map(sorted, table.tolist())) == [[-1, 1], [-1, 3], [0, 2]]
