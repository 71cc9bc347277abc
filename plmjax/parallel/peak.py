"""How fast this machine multiplies matrices, measured: the yardstick where no data sheet applies."""

import time

import jax
import jax.numpy as jnp


def measured_flops(dtype: jnp.dtype = jnp.float32, size: int = 1024, seconds: float = 0.3) -> float:
    """FLOP/s of one device at products of size x size matrices: the best of as many tries as fit in `seconds`."""
    a = jnp.ones((size, size), dtype)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
