"""The versions of plmjax and of the libraries that determine the results of a run; a filter for their log messages."""

import contextlib
import importlib.metadata
import logging
import os

try:
    VERSION = importlib.metadata.version("plmjax")
except importlib.metadata.PackageNotFoundError:  # run from sources that are not installed
    VERSION = "0.0.dev0"
NAMES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Return a dict from "the version of NAME" to the version, "none" if missing, for plmjax and its libraries.

    Hosts with different versions may compile different programs, which then wait for each other forever.
    """
    return {f"the version of {name}": version for name, version in {"plmjax": VERSION, **_installed()}.items()}


def _installed() -> dict[str, str]:
    found = {}
    for name in NAMES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


QUIET = {"orbax": logging.CRITICAL, "tensorflow_datasets": logging.ERROR}
"""Name of a library -> lowest level of its log messages that are shown.

Orbax logs every file that it reads or writes, and a traceback for every error that it raises. TFDS warns about calls in
its own code.
"""


def quiet() -> None:
    """Hide log messages of libraries, in commands and in Python programs. Messages of the caller's code are shown."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else TensorFlow logs it; it only reads and writes data
    with contextlib.suppress(ImportError):
        import absl.logging  # it gives its logger the class that finds the file of a caller

        absl.logging.get_absl_logger().addFilter(_needed)


def _needed(record: logging.LogRecord) -> bool:
    """Return whether to show a record of absl's logger, which several libraries share."""
    parts = record.pathname.split(os.sep)
    return all(record.levelno >= level for library, level in QUIET.items() if library in parts)
