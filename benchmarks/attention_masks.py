"""Both orders of dropout's mask in attention on one TPU v5e, forward and backward: the refined estimate, in us.

    python benchmarks/attention_masks.py

Each line is an attention with its projections, in bfloat16, with dropout 0.1: one of a loop over four layers, as in a
decoder that attends to a source. The chip's generator draws the mask with the keys last and with the queries last.
Nothing is run: the schedule of the compiler is counted (docs/tpu.md).
"""

import argparse
import os
from typing import Any

from planned_attention import TOPOLOGY, compiled_estimate

SHAPES = (
    (64, 128, 128, 12),
    (16, 128, 256, 12),
    (1, 256, 769, 12),
    (2, 512, 1537, 16),
    (16, 128, 512, 16),
    (16, 114, 512, 12),
    (2, 512, 16_384, 16),
)
"""Rows, queries, keys and heads of 64 features."""
LAYERS = 4
RATE = 0.1
KEYS_LAST, QUERIES_LAST = 0, 2**30
"""Values of `backends.MANY_KEYS` with which all masks have this order."""


def estimated(shape: tuple[int, ...], many_keys: int) -> list[float]:
    """Return both ends of the refined estimate of one layer in seconds."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from plmjax.contracts.execution import Execution
    from plmjax.layers.attention import backends
    from plmjax.layers.attention.multi_head import MultiHeadAttention
    from plmjax.parallel import topologies

    backends.MANY_KEYS = many_keys
    rows, queries, keys, heads = shape
    execution = Execution(dtype=jnp.bfloat16, attention="dense")
    module = MultiHeadAttention(64 * heads, heads, RATE, nn.initializers.normal(0.02), execution)
    part = topologies.parse(TOPOLOGY)
    whole = NamedSharding(Mesh(part.devices(), ("data",)), PartitionSpec())

    def loss(draw: jax.Array, params: Any, hidden: jax.Array, source: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(draw, impl="rbg")

        def layer(x: jax.Array, inputs: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
            number, params = inputs
            rngs = {"dropout": jax.random.fold_in(key, number)}
            return x + module.apply({"params": params}, x, source, deterministic=False, rngs=rngs), None

        return jnp.sum(jax.lax.scan(layer, hidden, (jnp.arange(LAYERS), params))[0].astype(jnp.float32))

    hidden, source = (jax.ShapeDtypeStruct((rows, length, 64 * heads), jnp.bfloat16) for length in (queries, keys))
    small = [jnp.zeros((1, 8, 64 * heads), jnp.bfloat16)] * 2
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), *small, deterministic=True))["params"]
    stacked = jax.tree.map(lambda one: jax.ShapeDtypeStruct((LAYERS, *one.shape), one.dtype), nn.meta.unbox(params))
    arguments = jax.ShapeDtypeStruct((4,), jnp.uint32), stacked, hidden, source
    placed = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=whole), arguments)
    lowered = jax.jit(jax.grad(loss, argnums=(1, 2, 3))).lower(*placed)
    return [seconds / LAYERS for seconds in compiled_estimate(lowered, part)[0]]


def main() -> None:
    """Print a line for each shape."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu"}
    print("| rows | queries | keys | heads | keys last, us | queries last, us |\n|---|---|---|---|---|---|", flush=True)
    for shape in SHAPES:
        cells = [f"{size:,}" for size in shape]
        for order in (KEYS_LAST, QUERIES_LAST):
            fast, slow = estimated(shape, order)
            cells.append(f"{1e6 * fast:,.0f} to {1e6 * slow:,.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
