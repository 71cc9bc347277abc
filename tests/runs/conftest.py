"""What tests of runs share."""

import pytest

from plmjax.runs import summary


@pytest.fixture
def without_export_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end without an export and filled masks, which take longer than their steps."""
    for name in ("_export", "_fill"):
        monkeypatch.setattr(summary, name, lambda *arguments: None)
