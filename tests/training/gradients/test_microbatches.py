"""Carries of microbatches; the gradient of all systems is compared in test_step.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.objectives.objective import LossInputs, LossSums
from plmjax.training.gradients.microbatches import accumulate


@pytest.mark.parametrize("microbatches", [2, 4])
def test_rows_keep_their_places_and_what_has_no_rows_goes_from_microbatch_to_microbatch(microbatches: int) -> None:
    """Microbatch i has the rows i, i + microbatches, ...; a leaf of the carry may have its rows in any place."""

    def loss(inputs: LossInputs, weights: dict, batch: dict, key: jax.Array) -> tuple[jax.Array, LossSums]:
        rows, columns, shared = inputs.carry
        x, total = batch["x"], jnp.sum(batch["x"])
        after = (rows + x, columns * x, 10 * shared + x[0])
        return total * inputs.params["kernel"], LossSums({"x": total}, {"x": (total, jnp.float32(len(x)))}, after)

    x = jnp.array([1.0, 2.0, 3.0, 4.0])
    inputs = LossInputs({"kernel": jnp.float32(1)}, carry=(10 * x, jnp.ones((2, 4)), jnp.float32(0)))
    gradient, sums = accumulate(
        loss,
        inputs,
        {},
        batch={"x": x},
        key=jax.random.key(0),
        carry_axes=(("batch",), (None, "batch"), ()),
        microbatches=microbatches,
        shards=2,
        add_shards=pytest.fail,
    )
    assert gradient.params == {"kernel": 10} and sums.losses == {"x": 10} and sums.metrics == {"x": (10, 4)}
    rows, columns, shared = sums.carry
    np.testing.assert_array_equal(rows, [11, 22, 33, 44])
    np.testing.assert_array_equal(columns, [[1, 2, 3, 4]] * 2)
    assert shared == {2: 12, 4: 1234}[microbatches]
