"""Dropout: its rate, its scale, its determinism."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.dropout import Dropout, keep_mask


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_rate_and_independence(implementation: str) -> None:
    key = jax.random.key(0, impl=implementation)
    mask = np.asarray(keep_mask(key, 0.1, (1001, 999)))
    assert abs(mask.mean() - 0.9) < 5 * 0.3 / 1000
    # Two elements come from one word, half the rows apart: none may agree with another more often than by chance.
    for one, other in ((mask[:, 1:], mask[:, :-1]), (mask[1:], mask[:-1]), (mask[501:], mask[:-501])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.006


def test_expectation_is_kept_and_gradients_pass_where_values_do() -> None:
    dropout, x = Dropout(0.3), jnp.ones((500, 401))
    apply = lambda x: dropout.apply({}, x, False, rngs={"dropout": jax.random.key(1)})  # noqa: E731
    y = np.asarray(apply(x))
    assert set(np.unique(y)) == {0.0, np.float32(1 / (1 - round(0.3 * 65536) / 65536))}
    assert abs(y.mean() - 1) < 0.01
    np.testing.assert_array_equal(jax.grad(lambda x: apply(x).sum())(x), y)
    np.testing.assert_array_equal(dropout.apply({}, x, True), x)
