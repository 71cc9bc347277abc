"""Parsing of numbers in text files, stricter than Python's `float`."""

import math
import re
from typing import Any

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def decimal(found: Any) -> float:
    """Return the finite number in a cell of a table or in a value of JSON.

    `float` would accept 1_0 as 10, digits of other scripts, True as 1, and nan and inf.

    Raises:
        ValueError: `found` is not a finite number.
    """
    if isinstance(found, str) and len(found) <= 400 and _DECIMAL.fullmatch(found.strip()):
        found = float(found)
    try:
        if type(found) in (int, float) and math.isfinite(found):
            return float(found)
    except OverflowError:  # of an integer too large for a float
        pass
    raise ValueError("it is no finite number")
