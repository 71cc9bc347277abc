"""Pretrained language models in JAX and Flax, from raw text to a trained, resumed, planned and exported model."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("plmjax")
except importlib.metadata.PackageNotFoundError:  # run from its sources, which know no tag
    __version__ = "0.0.dev0"

from plmjax import libraries, platform

libraries.quiet()
platform.choose()
