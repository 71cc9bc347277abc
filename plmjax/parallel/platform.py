"""Which accelerators this machine has, found without starting JAX."""

import importlib.util
import os
from pathlib import Path

GOOGLE_PCI_VENDOR = "0x1ae0"


def has_tpu() -> bool:
    """Whether a TPU chip is on the PCI bus."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(vendor.read_text().strip() == GOOGLE_PCI_VENDOR for vendor in vendors)


def choose() -> None:
    """Keeps JAX from starting libtpu where it is installed for planning only: it would print pages about no TPU."""
    if "JAX_PLATFORMS" not in os.environ and importlib.util.find_spec("libtpu") and not has_tpu():
        os.environ["JAX_PLATFORMS"] = "cuda,cpu" if Path("/proc/driver/nvidia/version").exists() else "cpu"
