"""Where the tests find the checkout, and what lies beside it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
SHARED = ROOT.parent / "shared"
"""What some tests need beside the checkout: a text collection, and what released code computes."""


def beside_the_checkout(name: str) -> Path:
    """A folder of `SHARED`; the test is skipped where it is absent."""
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    return folder
