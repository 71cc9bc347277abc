"""Repeated keys: of a stream, of all at once, and of parts give the same."""

import numpy as np
import pytest

from plmjax.data.cleaning.repeated import Seen, part_of, repeated


def test_the_first_of_equal_keys_is_not_repeated() -> None:
    assert repeated(np.array([[3], [1], [3], [2], [1], [3]], np.uint64)).tolist() == [0, 0, 1, 0, 1, 1]


def test_a_key_of_two_hashes_is_repeated_if_both_are() -> None:
    assert repeated(np.array([[1, 1], [1, 2], [2, 1], [1, 2]], np.uint64)).tolist() == [0, 0, 0, 1]
    assert Seen().repeated(np.array([[1, 1], [1, 2], [2, 1], [1, 2]], np.uint64)).tolist() == [0, 0, 0, 1]


def test_no_keys() -> None:
    assert repeated(np.empty((0, 1), np.uint64)).tolist() == Seen().repeated(np.empty((0, 2), np.uint64)).tolist() == []


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("parts", [1, 7])
def test_parts_give_what_a_stream_gives(width: int, parts: int) -> None:
    draws = np.random.default_rng(0)
    keys = draws.integers(2**64 - 40, 2**64 - 1, (500, width), np.uint64, endpoint=True)
    found = np.empty(len(keys), bool)
    for part in range(parts):
        chosen = part_of(keys, parts) == part
        assert chosen.any()
        found[chosen] = repeated(keys[chosen])
    seen = Seen()
    assert found.tolist() == [bool(again) for document in np.split(keys, 50) for again in seen.repeated(document)]
