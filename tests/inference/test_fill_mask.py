"""Hidden words of a text."""

from pathlib import Path

import pytest

from plmjax.errors import UserError
from plmjax.inference.fill_mask import MASK, fill_mask


def test_a_text_that_just_fits_the_positions_is_read(small_run: Path) -> None:
    """Two of the 128 positions are those of the tokens around it."""
    found = fill_mask(small_run, " ".join([MASK] * 126), top=1)
    assert len(found) == 126 and all(len(words) == 1 for words in found)
    with pytest.raises(UserError, match="Expected a text of at most 126 tokens, found 127; shorten it"):
        fill_mask(small_run, " ".join([MASK] * 127))
