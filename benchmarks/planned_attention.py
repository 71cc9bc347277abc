"""Attention of long rows on one TPU v5e, forward and backward, as libtpu compiles it: the refined estimate, in ms.

    python benchmarks/planned_attention.py [--cases window dense long narrow distances reshaped lsh local causal]
    python benchmarks/planned_attention.py --cases distances reshaped --topology v3:2x2
    python benchmarks/planned_attention.py --masks

`window` and `dense` are the scores and values of one row of 4,096 tokens with 12 heads of 64, with a window of 512 and
without one. `long` and `narrow` have one row of 8,192 tokens, `narrow` with a window of 129 keys. `distances` and
`reshaped` are the scores of all distances in 16 rows of 512 tokens with 12 heads of 64, by the kernel of
`plmjax.layers.attention.shifted_product` and by changes of shape. `lsh`, `local` and `causal` are layers of attention
with their projections, on one row of 65,536 tokens of 512 features with 8 heads of 64: Reformer's LSH attention in two
rounds, with its hashes, its order and chunks of 256; its local attention with chunks of 128; and attention to all
earlier tokens, a block at a time. All compute in bfloat16 and without dropout. Nothing is run: the schedule of the
compiler is counted (docs/notes/estimates.md). The HBM is that besides arguments and results.

With `--masks` both orders of dropout's mask: layers of attention with their projections and dropout 0.1, one of a loop
over four layers, as in a decoder that attends to a source. The chip's generator draws the mask with the keys last and
with the queries last.
"""

import argparse
import functools
import math
import os
from collections.abc import Callable
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax import experiment
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Causal, MaskTerms, Window
from plmjax.layers.attention import backends
from plmjax.layers.attention.backends import BACKENDS
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.relative_shift import PositionalScores
from plmjax.models.reformer.attention import LocalAttention, LshAttention
from plmjax.models.reformer.chunked_attention import Chunks
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.planning import compilation, estimate, hlo, refined

TOPOLOGY = "v5e:1x1"
CASES = ("window", "dense", "long", "narrow", "distances", "reshaped", "lsh", "local", "causal")
ROWS = {
    "window": (1, 4096, 12, 64),
    "dense": (1, 4096, 12, 64),
    "long": (1, 8192, 12, 64),
    "narrow": (1, 8192, 12, 64),
    "distances": (16, 512, 12, 64),
    "reshaped": (16, 512, 12, 64),
}
"""Case -> shape of queries, keys and values, [B T N H]."""
WINDOWS = {"window": Window(256, 256), "narrow": Window(64, 64)}
LONG = (1, 65_536, 512)
"""Shape of hidden states, [B T D]."""
HEADS, HEAD_SIZE = 8, 64
MASKED = (
    (64, 128, 128, 12),
    (16, 128, 256, 12),
    (1, 256, 769, 12),
    (2, 512, 1537, 16),
    (16, 128, 512, 16),
    (16, 114, 512, 12),
    (2, 512, 16_384, 16),
)
"""Rows, queries, keys and heads of the layers with a mask of dropout."""
LAYERS, RATE = 4, 0.1
KEYS_LAST, QUERIES_LAST = 0, 2**30
"""Values of `backends.MANY_KEYS` with which all masks have this order."""


def function_of(case: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function to differentiate, and the shapes of its arguments."""
    if case in ("distances", "reshaped"):
        rows, length, heads, size = ROWS[case]

        def scores(query: jax.Array, table: jax.Array) -> jax.Array:
            return PositionalScores(None, table, length, kernels=case == "distances").products(query, length)

        vectors = [(rows, length, heads, size), (1, 2 * length - 1, heads, size)]
        return scores, tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in vectors)
    if case in ROWS:
        mask_terms = MaskTerms((WINDOWS[case],) if case in WINDOWS else ())
        vectors = jax.ShapeDtypeStruct(ROWS[case], jnp.bfloat16)
        given = {"mask_terms": mask_terms, "terms": (), "rate": 0.0, "dropout_key": None}
        return functools.partial(BACKENDS["dense"], **given), (vectors,) * 3

    init, backend = nn.initializers.normal(0.02), "blockwise" if case == "causal" else "dense"
    execution = Execution(dtype=jnp.bfloat16, attention=backend)
    sizes = (LONG[-1], HEADS, HEAD_SIZE)
    documents, layer = jnp.ones(LONG[:2], jnp.int32), jnp.zeros((), jnp.int32)
    module, inputs = {
        "lsh": lambda: (
            LshAttention(*sizes, Chunks(256, 1, 0), True, 0.0, init, execution, rounds=2, buckets=(16, 32)),
            (documents, layer, None),
        ),
        "local": lambda: (LocalAttention(*sizes, Chunks(128, 1, 0), True, 0.0, init, execution), (documents,)),
        "causal": lambda: (MultiHeadAttention(LONG[-1], HEADS, 0.0, init, execution, use_bias=False), ()),
    }[case]()

    def attend(params: Any, x: jax.Array) -> jax.Array:
        given = (x, MaskTerms((Causal(),))) if case == "causal" else inputs
        found = module.apply({"params": params}, x, *given, deterministic=True)
        return found if case == "causal" else found[0]

    hidden = jax.ShapeDtypeStruct(LONG, jnp.bfloat16)
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), *_small(case), deterministic=True))["params"]
    return attend, (nn.meta.unbox(params), hidden)


def _small(case: str) -> tuple[Any, ...]:
    """Return inputs of a layer that is initialized."""
    x, documents = jnp.zeros((1, 8, LONG[-1]), jnp.bfloat16), jnp.ones((1, 8), jnp.int32)
    return {"lsh": (x, documents, 0, None), "local": (x, documents), "causal": (x, x)}[case]


def estimated(case: str, topology: str = TOPOLOGY) -> tuple[list[float], float]:
    """Return both ends of the refined estimate in seconds, and the bytes of HBM besides arguments and results."""
    function, shapes = function_of(case)
    part = topologies.parse(topology)
    mesh = meshes.make(experiment.Mesh(data=1), part.devices()[:1])

    def gradient(cotangent: jax.Array, *arguments: Any) -> Any:
        result, transposed = jax.vjp(function, *arguments)
        return result, transposed(cotangent)

    placed = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(mesh, PartitionSpec())),
        (jax.eval_shape(function, *shapes), *shapes),
    )
    return compiled_estimate(jax.jit(sharding.with_mesh(gradient, mesh)).lower(*placed), part)


def compiled_estimate(lowered: Any, part: Any) -> tuple[list[float], float]:
    """Compile a lowered function for one chip, and return what `estimated` returns.

    Raises:
        plmjax.planning.compilation.DoesNotFit: it needs more HBM than the chip has.
    """
    memory, text, schedules = compilation.compile_for_slice(lowered)
    ends = estimate.costs_of(hlo.Program(text), schedules, part.chip)
    return [refined.timeline(costs, {}).total / part.chip.clock for costs in ends], memory.temp_size_in_bytes


def masked(shape: tuple[int, ...], many_keys: int) -> list[float]:
    """Return both ends of the refined estimate of one layer with a mask of dropout, in seconds."""
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
    """Print a line for each case, or for each layer with a mask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--topology", default=TOPOLOGY, help="slice of the cases, of which one chip is used")
    parser.add_argument("--masks", action="store_true", help="both orders of dropout's mask instead")
    options = parser.parse_args()
    if options.masks:
        print(
            "| rows | queries | keys | heads | keys last, us | queries last, us |\n|---|---|---|---|---|---|",
            flush=True,
        )
        for shape in MASKED:
            cells = [f"{size:,}" for size in shape]
            for fast, slow in (masked(shape, order) for order in (KEYS_LAST, QUERIES_LAST)):
                cells.append(f"{1e6 * fast:,.0f} to {1e6 * slow:,.0f}")
            print(f"| {' | '.join(cells)} |", flush=True)
        return
    print("| attention | tokens | ms | HBM, MiB |\n|---|---|---|---|", flush=True)
    for case in options.cases:
        (fast, slow), size = estimated(case, options.topology)
        tokens = math.prod(ROWS.get(case, LONG)[:2])
        print(f"| {case} | {tokens:,} | {1e3 * fast:.2f} to {1e3 * slow:.2f} | {size / 2**20:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
