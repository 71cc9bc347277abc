"""TensorFlow for input pipelines: on the CPU, and without its start-up messages.

A new version of Python has no TensorFlow at first. A run on a prepared dataset does not need it
(`plmjax.data.pipeline`).
"""

import contextlib
import functools
import importlib.util
import os
import sys
from typing import Any

from plmjax.errors import UserError


def is_installed() -> bool:
    """Return whether TensorFlow is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def require(use: str) -> None:
    """Raise UserError if TensorFlow is not installed. use: the purpose, for the message."""
    if not is_installed():
        python = ".".join(map(str, sys.version_info[:2]))
        raise UserError(
            f"Expected TensorFlow, which {use}, found none on Python {python}; "
            "install tensorflow, or do this on a Python that it is made for."
        )


@functools.cache
def tensorflow() -> Any:
    """Return the tensorflow module, without access to the accelerators, which belong to JAX.

    Raises:
        UserError: it is not installed.
    """
    require("reads checkpoints and datasets of its own formats")
    with contextlib.suppress(ImportError):
        # Triton and TensorFlow each bring their own LLVM. Triton, a part of PyTorch's usual build, crashes if loaded
        # second.
        import triton._C.libtriton  # noqa: F401
    keras = os.environ.get("TF_USE_LEGACY_KERAS")
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # tries Keras 2, which is rarely installed, and not Keras 3
    import tensorflow as tf

    if keras is None:  # other users of tf.keras in this process get Keras 3
        del os.environ["TF_USE_LEGACY_KERAS"]
    else:
        os.environ["TF_USE_LEGACY_KERAS"] = keras

    with contextlib.suppress(RuntimeError):  # the caller's own TensorFlow code may have initialized the devices
        tf.config.set_visible_devices([], "GPU")
    return tf


@functools.cache
def tensorflow_datasets() -> Any:
    """Return the tensorflow_datasets module."""
    tensorflow()
    import tensorflow_datasets as tfds

    return tfds
