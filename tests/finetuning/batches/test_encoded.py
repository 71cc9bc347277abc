"""Encoded sequences: the prompt of each one."""

import numpy as np

from plmjax.finetuning.batches.encoded import Encoded, concatenated


def test_a_prompt_ends_with_the_summary_of_its_own_sequence() -> None:
    found = Encoded(np.arange(10), None, np.array([0, 4, 9, 10]), np.array([2, 4, 0]), {})
    assert found.prompts() == [[0, 1, 2], [4, 5, 6, 7, 8], [9]]


def test_the_arrays_that_tell_files_apart_are_all_of_both_sides() -> None:
    """Also the borders of sequences: the same tokens may be divided in another way."""
    decoder = Encoded(np.arange(20, 24), None, np.array([0, 1, 4]), np.zeros(2, int), {}, {"next": np.arange(4)})
    found = Encoded(
        np.arange(5), np.zeros(5, int), np.array([0, 2, 5]), np.zeros(2, int), {"label": np.array([7, 8])},
        {"tags": np.arange(30, 35)}, decoder,
    )  # fmt: skip
    assert [array.tolist() for array in found.arrays()] == [
        [0, 1, 2, 3, 4], [0] * 5, [0, 2, 5], [7, 8], [30, 31, 32, 33, 34],
        [20, 21, 22, 23], [0, 1, 4], [0, 1, 2, 3],
    ]  # fmt: skip


def test_files_are_joined_with_the_summaries_and_borders_of_each() -> None:
    parts = [
        Encoded(np.arange(5), None, np.array([0, 2, 5]), np.array([1, 2]), {}, {"tags": np.arange(5)}),
        Encoded(np.arange(10, 13), None, np.array([0, 3]), np.array([0]), {}, {"tags": np.arange(3)}),
        Encoded(np.arange(20, 22), None, np.array([0, 1, 2]), np.array([0, 0]), {}, {"tags": np.arange(2)}),
    ]
    whole = concatenated(parts)
    assert whole.offsets.tolist() == [0, 2, 5, 8, 9, 10] and whole.summaries.tolist() == [1, 2, 0, 0, 0]
    assert whole.prompts() == [[0, 1], [2, 3, 4], [10], [20], [21]]
    assert whole.token_fields["tags"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1]
