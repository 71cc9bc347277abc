"""Numbers in text: the decimal ones, and nothing that Python alone takes for a number."""

import pytest

from plmjax.files.decimals import decimal

TEXTS = [
    "",
    "1_0",
    "nan",
    "inf",
    "-Infinity",
    "1e999",
    "\u0663",
    "\u00b2",
    "1 2",
    "0x1",
    ".",
    "e1",
    "9" * 5000,
    "1" * 500,
]
OTHERS = [None, True, 10**400, float("inf"), float("nan"), [1], {}]


def test_a_decimal_number_is_read_and_anything_else_is_refused() -> None:
    for number in ("0", "-1.5", "+2.", ".5", " 1e3 ", "1E-2", 7, 2.5, -0.0):
        assert decimal(number) == float(number)
    for other in (*TEXTS, *OTHERS):
        with pytest.raises(ValueError, match="no finite number"):
            decimal(other)
