"""Sizes as a user writes them."""

import pytest

from plmjax.data import remote
from plmjax.errors import UserError


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("512MiB", 2**29), ("1.5e9", 1_500_000_000), ("3 kB", 3000), ("7", 7), ("2t", 2 * 10**12)],
)
def test_sizes_are_read_as_they_are_written(text: str, size: int) -> None:
    assert remote.parse_bytes("--data.cache_limit", text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "10 apples", "1.2.3MB", "1e999"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"size such as 10GB or 512MiB for --data\.cache_limit"):
        remote.parse_bytes("--data.cache_limit", text)
