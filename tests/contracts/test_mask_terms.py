"""Conditions of visibility: how far queries see, and which keys."""

from typing import Any

import numpy as np
import pytest

from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms, SameSegment, Window

RANKS = np.arange(20).reshape(2, 10) % 3


@pytest.mark.parametrize(
    ("conditions", "reach"),
    [
        ((), (None, None)),
        ((Causal(), KeyMask(RANKS)), (None, 0)),
        ((Causal(np.array([1, 2])), Window(3, 2)), (3, 2)),
        ((Window(3, 2), Causal(), Window(5, 1)), (3, 0)),
        ((Window(np.int32(3), 2), SameSegment(RANKS, RANKS)), (None, 2)),
    ],
)
def test_the_narrowest_condition_decides_how_far_a_query_sees(conditions: Any, reach: Any) -> None:
    assert MaskTerms(conditions).reach == reach


def test_queries_of_another_row_see_the_keys_of_their_sequence_that_are_no_padding() -> None:
    """More queries than keys, and a mask that hides a key of their sequence."""
    keys, queries = np.array([[1, 1, 2]]), np.array([[2, 1, 1, 0]])
    seen = lambda mask_terms, count: (np.asarray(mask_terms.bias(count, 3))[0, 0] == 0).astype(int).tolist()  # noqa: E731
    hidden = MaskTerms.of_rows(np.array([[0, 1, 1]]), keys, queries)
    assert seen(hidden, 4) == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert seen(MaskTerms.of_rows(None, keys, queries), 4) == [[0, 0, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert seen(MaskTerms.of_rows(None, keys), 3) == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert MaskTerms.of_rows(None, None, queries).bias(4, 3) is None
