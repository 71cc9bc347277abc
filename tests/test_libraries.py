"""The versions that hosts compare at the start."""

import importlib.metadata
import json

import jax
import numpy as np
import pytest

from plmjax import __version__, libraries
from plmjax.parallel.host_registry import difference


def test_a_library_that_differs_between_hosts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = libraries.versions()
    assert here["the version of plmjax"] == __version__
    assert (here["the version of jax"], here["the version of numpy"]) == (jax.__version__, np.__version__)
    version = importlib.metadata.version

    def repaired(name: str) -> str:
        if name == "libtpu":
            raise importlib.metadata.PackageNotFoundError
        return "99.1" if name == "optax" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", repaired)
    there = libraries.versions()
    assert there["the version of libtpu"] == "none"
    there["the version of libtpu"] = here["the version of libtpu"]
    found = difference(json.dumps(here), json.dumps(there), 3)
    assert found == f"the version of optax = 99.1 on host 3 and {version('optax')} on host 0"
