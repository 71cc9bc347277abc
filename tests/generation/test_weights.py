"""Parameters as a loop over tokens reads them: their dtype, an array for each layer, their place on a mesh."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.experiment import Mesh
from plmjax.generation import weights
from plmjax.parallel import mesh as meshes

AXES = {
    "table": ("vocab", "embed"),
    "scale": ("embed",),
    "kernel": ("layers", "embed", "mlp"),
    "bias": ("layers", "mlp"),
    "count": None,
}
SHAPES = {"table": (8, 4), "scale": (4,), "kernel": (2, 4, 6), "bias": (2, 6), "count": ()}


@pytest.mark.parametrize("unroll", [1, 2, 3])
def test_products_are_cast_and_layers_apart_where_code_is_straight(unroll: int) -> None:
    """Biases and the scales of norms stay in float32, in every layer."""
    random = np.random.default_rng(0)
    params = {name: np.asarray(random.normal(size=shape), np.float32) for name, shape in SHAPES.items()}
    boxed = {
        name: array if AXES[name] is None else nn.LogicallyPartitioned(array, AXES[name])
        for name, array in params.items()
    }
    mesh = meshes.make(Mesh(data=1, fsdp=1, tensor=2), jax.devices()[:2])
    execution = Execution(dtype=jnp.bfloat16, unroll=unroll)
    placed = weights.placed(params, boxed, execution, mesh)
    apart = [name for name, leaf in placed.items() if isinstance(leaf, weights.Apart)]
    assert apart == (["bias", "kernel"] if unroll >= 2 else [])
    found = weights.together(placed)
    for name, array in params.items():
        dtype = jnp.bfloat16 if name in ("table", "kernel") else jnp.float32
        assert found[name].dtype == dtype
        np.testing.assert_array_equal(found[name], array.astype(dtype))
    kernels = placed["kernel"].layers if unroll >= 2 else (placed["kernel"],)
    assert {one.sharding.shard_shape(one.shape)[-2:] for one in kernels} == {(4, 3)}  # half of the feed-forward
