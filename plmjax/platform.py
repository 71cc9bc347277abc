"""The accelerators that this machine has and JAX can use, found without starting JAX."""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

GOOGLE_PCI_VENDOR = "0x1ae0"
TPU_PCI_DEVICES = {
    "0x0027": "v2 and v3",
    "0x0056": "a chip without a public name",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
    "0x007c": "8t",
    "0x0083": "8i",
}
"""PCI device id -> TPU generations. Google's network cards (gVNIC, 0x0042) and disks have the same vendor id.

jax/_src/hardware_utils.py has the same list, but importing that module would import all of JAX.
"""
DRIVER = Path("/proc/driver/nvidia/version")
"""File that exists while NVIDIA's driver is loaded."""
MALLOC_OPTIONS = {"arenas": (-8, 1), "mapped blocks": (-4, 0), "trimming": (-1, -1)}
"""Numbers of M_ARENA_MAX, M_MMAP_MAX and M_TRIM_THRESHOLD in glibc's malloc.h, and values for them that prevent glibc
from returning memory to the system."""


def has_tpu() -> bool:
    """Return whether a TPU chip is on the PCI bus."""
    return any(
        vendor.read_text().strip() == GOOGLE_PCI_VENDOR
        and vendor.with_name("device").read_text().strip() in TPU_PCI_DEVICES
        for vendor in Path("/sys/bus/pci/devices").glob("*/vendor")
    )


def has_gpu() -> bool:
    """Return whether NVIDIA's driver is loaded and JAX's CUDA plugin is installed. JAX needs both to use CUDA."""
    plugins = (f"jax_cuda{version}_plugin" for version in (12, 13))
    return DRIVER.exists() and any(importlib.util.find_spec(plugin) for plugin in plugins)


def choose() -> None:
    """Set JAX_PLATFORMS without tpu on a machine that has libtpu for planning only, where libtpu would print errors.

    JAX reads the environment when it is imported. If that was before this call, its config is updated instead.
    """
    if has_tpu():
        return
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # without a TPU JAX would wait for Google's metadata server
    if "JAX_PLATFORMS" in os.environ or not importlib.util.find_spec("libtpu"):
        return
    os.environ["JAX_PLATFORMS"] = "cuda,cpu" if has_gpu() else "cpu"
    if "jax" in sys.modules and not sys.modules["jax"].config.jax_platforms:
        sys.modules["jax"].config.update("jax_platforms", os.environ["JAX_PLATFORMS"])


def keep_freed_memory() -> None:
    """Keep the memory that a step on a CPU frees for the next step. Do nothing with a C library other than glibc.

    XLA for CPU allocates a step's temporary arrays anew in every step. glibc returns such large blocks to the system,
    which then has to clear every page again. This takes a ninth of the time of BERT-Base's step
    (`benchmarks/steps.py`). The function affects threads that start afterwards.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option, value in MALLOC_OPTIONS.values() if mallopt else ():
        mallopt(option, value)


def cores() -> int:
    """Return the number of processor cores that this process may use.

    XLA for CPU divides a sum over this many threads.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
