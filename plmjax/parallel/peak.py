"""Peak FLOP/s of matrix products on this machine, from the data sheet or measured."""

import time

import jax
import jax.numpy as jnp

from plmjax.parallel import topologies

MEASURED: dict[str, float] = {}
"""Device kind -> largest FLOP/s of one device that this process has measured. Runs and phases share the figure, because
a measurement keeps every core busy for a third of a second."""
DOUBTED = 0.5
"""Fraction of the measured peak above which a step makes the peak doubtful: other work may have slowed its
measurement."""


def product_size(platform: str) -> int:
    """Return the size of matrices whose products keep a device of this platform ("cpu", "gpu" or "tpu") busy."""
    return 1024 if platform == "cpu" else 8192


def measure_flops(dtype: jnp.dtype = jnp.float32, size: int = 1024, seconds: float = 0.3) -> float:
    """Return the FLOP/s of one device for products of size x size matrices.

    It is the largest of as many trials as fit in `seconds`.
    """
    a = jnp.ones((size, size), dtype)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


class PeakFlops:
    """Peak FLOP/s of a mesh, the denominator of the MFU.

    rate: FLOP/s of matrix products on all devices, from the data sheet or else the largest measured in this process.
    origin: text for the origin of the rate: the data sheet or a measurement.
    """

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        device = mesh.devices.flat[0]
        sheet = topologies.peak_flops(device.device_kind)
        self._measured = sheet is None
        self._kind, self._on_cpu, self._devices = device.device_kind, device.platform == "cpu", mesh.size
        self.rate = self._largest() if sheet is None else sheet * mesh.size
        self.origin = "the fastest products measured here" if self._measured else "of the data sheet"
        self._fastest = DOUBTED * self.rate

    def mfu(self, achieved: float) -> float:
        """Return the MFU of a step with `achieved` model FLOP/s. It is at most 1 where the peak is measured.

        If a processor was busy during the measurement and is idle now, the MFU could exceed 1. So the peak is measured
        again after a step that is much faster than all earlier ones, at most a few times per run.
        """
        if self._measured and achieved > self._fastest:
            self.rate = max(self.rate, self._largest(again=True))
            self._fastest = 1.1 * achieved
        if self._measured:
            self.rate = max(self.rate, achieved)
        return achieved / self.rate

    def _largest(self, again: bool = False) -> float:
        """Return the largest rate of the mesh that this process has measured.

        It is measured if there is none yet, or if `again` is true.
        """
        if again or self._kind not in MEASURED:
            found = measure_flops() if self._on_cpu else measure_flops(jnp.bfloat16, size=product_size("gpu"))
            MEASURED[self._kind] = max(found, MEASURED.get(self._kind, 0.0))
        # Simulated devices share the cores, so the rate of one is the rate of all.
        return MEASURED[self._kind] * (1 if self._on_cpu else self._devices)
