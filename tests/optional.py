"""The libraries that tests compare with and that the extra `parity` installs.

`from tests.optional import torch` imports nothing yet: the first use of the library does. Where it is not installed,
this use skips the test with that reason, and the other tests of the file run.
"""

import importlib.util
from typing import Any

import pytest

REASON = "needs torch, which the extra `parity` installs"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=REASON)
"""Marks tests of what plmjax itself does with torch, or with the models of transformers."""
needs_sentence_transformers = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None,
    reason="needs sentence-transformers, which the extra `parity` installs",
)
"""Marks tests of the folders that sentence-transformers opens; it brings torch."""


class Library:
    """A library that is imported when it is used; without torch transformers has no models."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for its own marks on everything that a test file names
            raise AttributeError(attribute)
        pytest.importorskip("torch", reason=REASON)
        return getattr(importlib.import_module(self._name), attribute)


torch, transformers = Library("torch"), Library("transformers")
