"""Numbers in text of others, where Python's `float` takes more for a number than files mean."""

import math
import re
from typing import Any

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def decimal(found: Any) -> float:
    """The finite number that a cell of a table or a value of JSON is.

    `float` takes 1_0 for 10, digits of other scripts, True for 1, and nan and inf for numbers.

    Raises:
        ValueError: it is none.
    """
    if isinstance(found, str) and len(found) <= 400 and _DECIMAL.fullmatch(found.strip()):
        found = float(found)
    try:
        if type(found) in (int, float) and math.isfinite(found):
            return float(found)
    except OverflowError:  # of an integer above every float
        pass
    raise ValueError("it is no finite number")
