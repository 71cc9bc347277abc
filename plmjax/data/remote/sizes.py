"""Sizes as a user writes them: 10GB, 512MiB, 1.5e9."""

import re

from plmjax.errors import UserError, quoted

_PREFIXES = "kmgt"
_SIZE = re.compile(rf"(?P<number>[0-9.]+(?:e[0-9]+)?) ?(?:(?P<prefix>[{_PREFIXES}])(?P<binary>i)?)?b?", re.IGNORECASE)


def parse_bytes(option: str, text: str) -> int:
    """Parse a number of bytes with a unit B, kB, MB, GB, TB, KiB, MiB, GiB or TiB.

    Raises:
        UserError: `text` is not a number of bytes above 0; the message has the option's name.
    """
    found = _SIZE.fullmatch(text.strip())
    try:
        power = _PREFIXES.index(found["prefix"].lower()) + 1 if found and found["prefix"] else 0
        size = int(float(found["number"]) * (1024 if found["binary"] else 1000) ** power) if found else 0
    except (ValueError, OverflowError):  # such as 1.2.3 and 1e999
        size = 0
    if size < 1:
        raise UserError(f"Expected a size such as 10GB or 512MiB for {option}, found {quoted(text)}; change it.")
    return size
