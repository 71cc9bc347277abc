"""The tokens that a recurrent layer reads, and the place where a text begins."""

import numpy as np

from plmjax.layers.recurrent.masks import recurrent_masks

SEGMENTS = np.array([[1, 1, 2, 2, 0], [0, 1, 1, 1, 2]])


def test_without_masks_a_row_is_one_text_without_padding():
    assert recurrent_masks(None, None) == {"visible": None, "starts": None}


def test_padding_is_what_either_mask_says():
    attention_mask = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = recurrent_masks(attention_mask, SEGMENTS)["visible"]
    np.testing.assert_array_equal(found, [[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]])
    alone = recurrent_masks(attention_mask, None)
    np.testing.assert_array_equal(alone["visible"], attention_mask > 0)
    assert alone["starts"] is None


def test_a_text_begins_where_its_segment_or_its_type_changes():
    found = recurrent_masks(None, SEGMENTS)["starts"]
    np.testing.assert_array_equal(found, [[1, 0, 1, 0, 1], [1, 1, 0, 0, 1]])
    types = np.array([[0, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    found = recurrent_masks(None, SEGMENTS, types)["starts"]
    np.testing.assert_array_equal(found, [[1, 1, 1, 0, 1], [1, 1, 0, 1, 1]])
