"""What JAX is told to start, on machines with and without accelerators and their libraries."""

import importlib.util
import os

import pytest

from plmjax.parallel import platform


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
