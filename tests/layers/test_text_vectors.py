"""Vectors of texts by hand; tests/interop/test_sentence_transformers.py compares them with sentence-transformers."""

import numpy as np
import pytest

from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.errors import UserError
from plmjax.layers.text_vectors import Dense, LayerNorm, Normalize, TextVectors, tokens_before

STATES = np.array([[9.0, 9.0], [1.0, -4.0], [3.0, 2.0], [5.0, -1.0]], np.float32)
BY_HAND = {
    "cls": [1, -4],
    "lasttoken": [5, -1],
    "max": [5, 2],
    "mean": [3, -1],
    "mean_sqrt_len_tokens": [9 / 3**0.5, -3 / 3**0.5],
    "weightedmean": [(2 + 9 + 20) / 9, (-8 + 6 - 4) / 9],
}
"""Of the last three tokens, whose places in the row stay 2, 3 and 4."""


def test_poolings_without_the_prompt_and_joined() -> None:
    for mode, expected in BY_HAND.items():
        found = TextVectors((mode,), include_prompt=False).pool(STATES, before=1)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    both = TextVectors(("mean", "cls")).pool(STATES, before=1)
    np.testing.assert_array_equal(both, [*STATES.mean(axis=0), 9, 9])
    with pytest.raises(UserError, match="found one of 4 tokens in a row of 4"):
        TextVectors(include_prompt=False).pool(STATES, before=4)


def test_layers_after_the_pooling() -> None:
    recipe = TextVectors(layers=(Dense("Identity", residual=True), LayerNorm(), Normalize()))
    params = {
        "0": {"kernel": np.float32([[2, 0], [0, 3]]), "bias": np.float32([1, 0])},
        "1": {"scale": np.float32([1, 1]), "bias": np.float32([1, 2])},
    }
    found = recipe.finish(np.float32([[1, 1]]), params)  # 4 and 4 have no variance
    np.testing.assert_allclose(found, [[5**-0.5, 2 * 5**-0.5]], rtol=1e-6)


def test_the_prompt_is_counted_with_its_special_tokens_but_the_last() -> None:
    templates = (Template("cls A sep", "cls A sep B sep"), Template("A sep cls", "A sep B sep cls"), TEXT_ALONE)
    assert [tokens_before([7, 8], template) for template in templates] == [3, 3, 2]
    assert [tokens_before([], template) for template in templates] == [0, 0, 0]
