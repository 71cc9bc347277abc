"""The time to fetch the metrics of the steps of a logged line: a scalar each, and one array a step.

XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python benchmarks/step_metrics.py

Prints medians in milliseconds. The arrays are replicated over all devices, as a step returns them.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.experiment import Mesh
from plmjax.parallel import mesh as meshes
from plmjax.training.pace import Pace
from plmjax.training.step_metrics import StepMetrics


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--metrics", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    whole = NamedSharding(meshes.make(Mesh(), jax.devices()), PartitionSpec())

    def scalars(step: jax.Array) -> dict[str, jax.Array]:
        return {f"metric_{number}": jnp.sqrt(step + number) for number in range(options.metrics)}

    apart = jax.jit(scalars, out_shardings=whole)
    joined = jax.jit(lambda step: StepMetrics.joined(scalars(step)), out_shardings=whole)

    def apart_seconds() -> tuple[float, list[dict[str, float]]]:
        steps = jax.block_until_ready([apart(jnp.float32(step)) for step in range(options.steps)])
        start = time.perf_counter()
        found = [{name: float(value) for name, value in step.items()} for step in jax.device_get(steps)]
        return time.perf_counter() - start, found

    def joined_seconds() -> tuple[float, list[dict[str, float]]]:
        pace = Pace()
        for step in range(options.steps):
            pace.add(jax.block_until_ready(joined(jnp.float32(step))))
        start = time.perf_counter()
        found = pace.drain()
        return time.perf_counter() - start, found

    turns = [(apart_seconds(), joined_seconds()) for _ in range(options.repeats)]
    assert all(one[1] == other[1] for one, other in turns)
    print(f"{options.steps} steps of {options.metrics} metrics on {len(jax.devices())} {jax.default_backend()} devices")
    for name, index in (("scalars", 0), ("one array a step", 1)):
        print(f"{name:<17} {statistics.median(turn[index][0] for turn in turns) * 1e3:6.2f} ms")


if __name__ == "__main__":
    main()
