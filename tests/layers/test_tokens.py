"""Rows of tokens: which shapes and lengths a model takes, and the token that stands for a row."""

import jax.numpy as jnp
import pytest

from plmjax.errors import UserError
from plmjax.layers.tokens import check_token_inputs, first_of_each, last_tokens


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


def test_the_last_token_of_a_row_is_real_on_whichever_side_the_padding_is() -> None:
    mask = jnp.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]])
    places = jnp.broadcast_to(jnp.arange(4.0)[:, None], (4, 4, 1))
    assert last_tokens(places, mask, None)[:, 0].tolist() == [1, 3, 2, 3]
    assert last_tokens(places, None, None)[:, 0].tolist() == [3] * 4  # all are real
    ends = jnp.array([[0, 2]] * 4)
    assert last_tokens(places, mask, ends)[..., 0].tolist() == [[0, 2]] * 4


def test_a_sequence_begins_where_the_number_of_the_token_before_is_another_one() -> None:
    segments = jnp.array([[0, 0, 1, 1, 2], [3, 1, 1, 0, 0]])
    assert first_of_each(segments).tolist() == [[True, False, True, False, True], [True, True, False, True, False]]
