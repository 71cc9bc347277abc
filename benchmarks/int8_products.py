"""The forward pass of a BERT with products in float and in int8: on this machine, or as libtpu compiles it for a TPU.

    python benchmarks/int8_products.py [--repeats 7] [--rows 8]
    python benchmarks/int8_products.py --topology v5e:1x1 [--rows 64]

The encoder has 12 layers of 768 (with --topology) or 4 of 512, and reads rows of 128 tokens. On this machine it
computes in float32 and the kinds of products take turns, in one process on one core; the time is that of the processor.
For a TPU it computes in bfloat16. Nothing is run there: the schedule of the compiler is counted
(docs/notes/estimates.md), with the kernels of the checkpoint in float32 as they are when a command reads it. Also
printed are the share of the multiplications that have int8 operands, and the largest number of them in a second, of all
products together.
"""

import argparse
import os
import statistics
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from turns import in_turns

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.layers.int8 import PROJECTIONS
from plmjax.models.bert import BertConfig
from plmjax.parallel import topologies
from plmjax.planning import compilation, estimate, hlo, refined
from plmjax.planning.products import INTEGERS, multiply_adds

KINDS = ("float", "int8_dynamic", "int8_static")
LENGTH = 128


def forward(precision: str, *, planned: bool, rows: int) -> tuple[Any, tuple[Any, Any]]:
    """Return the function of (parameters, ids) that computes hidden states, and the shapes of its arguments."""
    config = BertConfig.base() if planned else BertConfig.small(vocab_size=8192)
    dtype, unroll = (jnp.bfloat16, 1) if planned else (jnp.float32, config.depth)
    module = config.module(Purpose.ENCODING, Execution(dtype=dtype, unroll=unroll, projection=PROJECTIONS[precision]))
    ids = jax.ShapeDtypeStruct((rows, LENGTH), jnp.int32)
    params = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), ids))["params"]
    return lambda params, ids: module.apply({"params": params}, ids).last_hidden_state, (params, ids)


def planned(precision: str, topology: str, rows: int) -> tuple[list[float], float, float]:
    """Return (both ends of the refined seconds, share of multiply-adds in int8, multiply-adds) of the compiled pass."""
    function, shapes = forward(precision, planned=True, rows=rows)
    part = topologies.parse(topology)
    place = NamedSharding(Mesh(part.devices(), ("data",)), PartitionSpec())
    shapes = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place), shapes)
    _, text, schedules = compilation.compile_for_slice(jax.jit(function).lower(*shapes))
    read = hlo.Program(text)
    ends = estimate.costs_of(read, schedules, part.chip)
    total, integers = (
        sum(times * multiply_adds(read, one, dtypes) for one, times in read.top_level) for dtypes in (None, INTEGERS)
    )
    return [refined.timeline(costs, {}).total / part.chip.clock for costs in ends], integers / total, total


def measured(rows: int, repeats: int) -> dict[str, list[float]]:
    """Return kind -> processor seconds of each turn on this machine."""
    ready = {}
    for kind in KINDS:
        function, (params, ids) = forward(kind, planned=False, rows=rows)
        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(0), len(leaves))
        values = [0.02 * jax.random.normal(key, one.shape) for key, one in zip(keys, leaves, strict=True)]
        params = jax.tree.unflatten(structure, values)
        params = jax.tree_util.tree_map_with_path(_positive, params)
        arguments = jax.jit(function), params, jnp.ones(ids.shape, ids.dtype)
        ready[kind] = lambda arguments=arguments: jax.block_until_ready(arguments[0](*arguments[1:]))
    return {kind: list(found[:, 1]) for kind, found in in_turns(ready, repeats).items()}


def _positive(path: Any, leaf: Any) -> Any:
    """Return scales and ranges of a usual size, and other values as they are."""
    name = path[-1].key
    return 0 * leaf + {"kernel_scale": 1500.0, "input_range": 4.0, "output_range": 4.0}[name] if "_" in name else leaf


def main() -> None:
    """Print a line for each kind of products."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if options.topology:
        rows = options.rows or 64
        print("| products | ms | ratio | in int8 | 10^12 operations a second |\n|---|---|---|---|---|", flush=True)
        first = None
        for kind in KINDS:
            seconds, share, count = planned(kind, options.topology, rows)
            first = first or seconds
            times = " to ".join(f"{1e3 * one:.2f}" for one in seconds)
            ratios = " to ".join(f"{one / other:.2f}" for one, other in zip(first, seconds, strict=True))
            rates = " to ".join(f"{2 * count / one / 1e12:.0f}" for one in reversed(seconds))
            print(f"| {kind} | {times} | {ratios} | {share:.0%} | {rates} |", flush=True)
        return
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    seconds = measured(options.rows or 8, options.repeats)
    print("| products | ms | range | ratio |\n|---|---|---|---|")
    first = statistics.median(seconds["float"])
    for kind, found in seconds.items():
        median = statistics.median(found)
        span = f"{1e3 * min(found):.0f} to {1e3 * max(found):.0f}"
        print(f"| {kind} | {1e3 * median:.0f} | {span} | {first / median:.2f} |")


if __name__ == "__main__":
    main()
