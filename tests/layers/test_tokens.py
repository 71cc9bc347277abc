"""Rows of tokens: which shapes and lengths a model takes."""

import jax.numpy as jnp
import pytest

from plmjax.errors import UserError
from plmjax.layers.tokens import check_token_inputs


def test_a_row_has_at_most_the_positions_of_the_model() -> None:
    row = jnp.zeros((2, 5), jnp.int32)
    check_token_inputs(5, "--model.n_positions", row, None, row)
    check_token_inputs(None, "", row)
    with pytest.raises(UserError, match=r"at most 4 tokens, .* found 5; shorten the rows or set --model\.n_positions"):
        check_token_inputs(4, "--model.n_positions", row)


def test_all_inputs_have_one_shape() -> None:
    row = jnp.zeros((2, 5), jnp.int32)
    for others in ((row, row[:, :4]), (row[0], row[0])):
        with pytest.raises(ValueError, match=r"all have the shape \[B T\]"):
            check_token_inputs(5, "", *others)
