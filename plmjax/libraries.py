"""The versions of the libraries that decide what a run computes."""

import importlib.metadata

from plmjax import __version__

NAMES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Return a dict from "the version of NAME" to version, of plmjax and its libraries; "none" for one that is missing.

    Hosts with different versions may compile different programs, which then wait for each other without end.
    """
    return {f"the version of {name}": version for name, version in {"plmjax": __version__, **_installed()}.items()}


def _installed() -> dict[str, str]:
    found = {}
    for name in NAMES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found
