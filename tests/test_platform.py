"""The platform that JAX is told to start, on machines with and without accelerators and their libraries."""

import ctypes
import importlib.util
import os
import subprocess
import sys

import pytest
from jax._src import hardware_utils

from plmjax import platform


@pytest.mark.parametrize(
    ("libraries", "driver", "chosen"),
    [
        ((), True, None),  # nothing to keep from starting: JAX looks for itself
        (("libtpu",), False, "cpu"),
        (("libtpu",), True, "cpu"),  # a GPU, and a JAX for the CPU: asked for CUDA it would fail
        (("libtpu", "jax_cuda12_plugin"), True, "cuda,cpu"),
        (("libtpu", "jax_cuda13_plugin"), True, "cuda,cpu"),
        (("libtpu", "jax_cuda12_plugin"), False, "cpu"),
    ],
)
def test_only_what_is_here_and_installed_is_started(libraries, driver, chosen, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in libraries or None)
    monkeypatch.setattr(platform, "has_tpu", lambda: False)
    monkeypatch.setattr(platform, "DRIVER", tmp_path if driver else tmp_path / "absent")
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    platform.choose()
    assert os.environ["JAX_PLATFORMS"] == "tpu"  # the user's own choice stands
    monkeypatch.delenv("JAX_PLATFORMS")
    platform.choose()
    assert os.environ.pop("JAX_PLATFORMS", None) == chosen
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ((), False),
        ((("0x8086", "0x0063"),), False),  # the number of a v5e, by another vendor
        ((("0x1ae0", "0x0042"), ("0x1ae0", "0x001f")), False),  # Google's network card and disk, on any of its machines
        ((("0x8086", "0x1237"), ("0x1ae0", "0x0042"), ("0x1ae0", "0x005e")), True),
    ],
)
def test_a_tpu_is_one_of_the_devices_on_the_bus(devices, found, monkeypatch, tmp_path):
    for number, (vendor, device) in enumerate(devices):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(number) / "device").write_text(f"{device}\n")
    monkeypatch.setattr(platform, "Path", lambda bus: tmp_path if bus == "/sys/bus/pci/devices" else pytest.fail(bus))
    assert platform.has_tpu() is found


def test_every_tpu_that_jax_knows_is_one():
    assert hardware_utils._TPU_PCI_DEVICE_IDS.keys() <= platform.TPU_PCI_DEVICES.keys()


FREED = """
import resource, sys, threading
from plmjax import platform

def faults():
    for _ in range(10):
        b"x" * 2**26  # 16,384 pages
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

if sys.argv[1] == "keep":
    platform.keep_freed_memory()
found = []
for _ in range(2):
    thread = threading.Thread(target=faults)
    thread.start()
    thread.join()
print(found[1] - found[0])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="of glibc")
def test_memory_that_a_thread_frees_is_not_cleared_again():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", FREED, mode], capture_output=True, text=True, check=True).stdout)
        for mode in ("keep", "return")
    )
    assert kept < 1000 and returned > 100_000
