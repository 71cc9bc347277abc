"""Carries and keys of microbatches; the gradient of all systems is compared in test_step.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.objectives.objective import LossInputs, LossSums
from plmjax.training.gradients.microbatches import accumulate, accumulate_into, add_gradients


@pytest.mark.parametrize("microbatches", [1, 2, 4])
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
    assert shared == {1: 1, 2: 12, 4: 1234}[microbatches]


def test_a_gradient_begins_with_the_total_of_the_microbatches_before() -> None:
    """Float32 parameters by the loss itself, others afterwards; the total is added before the gradients of the uses."""
    params = {"table": jnp.arange(6.0).reshape(3, 2), "kernel": jnp.ones((2, 2), jnp.bfloat16)}
    x, ids = jnp.array([[1.0, 2.0]]), jnp.array([2])

    def loss(params: dict, total: dict | None) -> jax.Array:
        scores = (x + params["table"][ids]) @ params["kernel"].astype(jnp.float32) @ params["table"].T
        return accumulate_into(jnp.sum(scores), params, total)

    def gradient(total: dict | None) -> dict:
        return add_gradients(jax.grad(loss)(params, total), total)

    total = {name: jnp.full(x.shape, 10.0) for name, x in sorted(params.items())}
    found, alone = gradient(total), gradient(None)
    assert alone["kernel"].dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(found))
    jax.tree.map(lambda ours, own: np.testing.assert_allclose(ours, 10 + own.astype(jnp.float32)), found, alone)
    jaxpr = jax.make_jaxpr(gradient)(total).jaxpr
    sums = [e.invars for e in jaxpr.eqns if e.primitive.name == "add_any" and e.outvars[0].aval.shape == (3, 2)]
    start = jaxpr.invars[list(total).index("table")]
    assert len(sums) == 2 and start in sums[0]
