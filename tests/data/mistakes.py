"""What a user is told about a mistake."""

from collections.abc import Callable, Iterator

import pytest

from plmjax.errors import UserError


def refused(action: Callable[[], object], parts: str) -> str:
    """An action ends in one sentence that has all parts, which " .. " divides. Return the sentence."""
    with pytest.raises(UserError) as caught:
        found = action()
        if isinstance(found, Iterator):
            list(found)
    sentence = str(caught.value)
    assert "\n" not in sentence and [part for part in parts.split(" .. ") if part not in sentence] == [], sentence
    return sentence
