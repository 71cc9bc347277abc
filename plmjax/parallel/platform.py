"""Which accelerators this machine has and JAX can use, found without starting JAX."""

import importlib.util
import os
from pathlib import Path

GOOGLE_PCI_VENDOR = "0x1ae0"
DRIVER = Path("/proc/driver/nvidia/version")
"""Exists while NVIDIA's driver is loaded."""


def has_tpu() -> bool:
    """Whether a TPU chip is on the PCI bus."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(vendor.read_text().strip() == GOOGLE_PCI_VENDOR for vendor in vendors)


def has_gpu() -> bool:
    """Whether an NVIDIA GPU's driver and JAX's plugin are installed: JAX fails on CUDA without both."""
    plugins = (f"jax_cuda{version}_plugin" for version in (12, 13))
    return DRIVER.exists() and any(importlib.util.find_spec(plugin) for plugin in plugins)


def choose() -> None:
    """Prevents JAX from starting libtpu where it is installed for planning only: it would print pages of errors."""
    if "JAX_PLATFORMS" not in os.environ and importlib.util.find_spec("libtpu") and not has_tpu():
        os.environ["JAX_PLATFORMS"] = "cuda,cpu" if has_gpu() else "cpu"
