"""Fixtures of the tests of layers."""

from collections.abc import Iterator
from typing import Any

import jax
import pytest


@pytest.fixture(params=["cpu", "others"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test runs twice: with what is written for a CPU, and with what all other platforms compute."""
    if request.param == "cpu":
        yield
        return

    def others(*arguments: Any, cpu: Any, default: Any) -> Any:
        asked.append(cpu)
        return default(*arguments)

    asked = []
    monkeypatch.setattr(jax.lax, "platform_dependent", others)
    jax.clear_caches()  # what was traced for a CPU, and afterwards what was not
    yield
    jax.clear_caches()
    assert asked, "the test never came to a choice between platforms"
