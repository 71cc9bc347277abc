"""The version of plmjax, those of the libraries that decide what a run computes, and messages that nobody needs."""

import contextlib
import importlib.metadata
import logging
import os

try:
    VERSION = importlib.metadata.version("plmjax")
except importlib.metadata.PackageNotFoundError:  # run from its sources, which know no tag
    VERSION = "0.0.dev0"
NAMES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Return a dict from "the version of NAME" to version, of plmjax and its libraries; "none" for one that is missing.

    Hosts with different versions may compile different programs, which then wait for each other without end.
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
"""Lowest level of a library's messages that is shown.

Orbax logs every file that it touches, and a traceback of every error that it raises; TFDS warns of its own calls.
"""


def quiet() -> None:
    """Hide messages of libraries in Python programs and commands; those of the caller's own code are shown."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # TensorFlow only reads and writes data; no log line
    with contextlib.suppress(ImportError):
        import absl.logging  # gives its logger a class, which names the file of a record

        absl.logging.get_absl_logger().addFilter(_needed)


def _needed(record: logging.LogRecord) -> bool:
    """Return whether a record of absl's logger, which several libraries share, is to be shown."""
    parts = record.pathname.split(os.sep)
    return all(record.levelno >= level for library, level in QUIET.items() if library in parts)
