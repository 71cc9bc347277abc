"""Lengths of texts: one for each prompt, taken by all rows of it."""

import jax.numpy as jnp

from plmjax.generation.search import Lengths


def test_every_row_of_a_prompt_has_the_lengths_of_its_prompt() -> None:
    """Rows are in the order of prompts, as tokens and keys are repeated for them."""
    least, most = Lengths(jnp.array([1, 2]), jnp.array([3, 4])).of_rows(3)
    assert least.tolist() == [1, 1, 1, 2, 2, 2] and most.tolist() == [3, 3, 3, 4, 4, 4]


def test_prompts_alike_have_the_same_lengths() -> None:
    least, most = Lengths.alike(2, 1, 5).of_rows(2)
    assert least.tolist() == [1] * 4 and most.tolist() == [5] * 4
