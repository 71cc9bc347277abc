"""The bytes that the pieces of some lanes need on the disk at once."""

from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.data import order
from plmjax.data.remote import TwoLevelOrder
from plmjax.data.remote.reader import check_limit
from plmjax.errors import UserError


def test_the_limit_holds_the_largest_windows_of_each_order() -> None:
    """The limit is that of the pieces that an order visits, whatever the others have."""
    sizes = [900, 10, 70, 30, 60, 20, 50]
    key = order.fold(0, 0)
    orders = [
        TwoLevelOrder(np.array([0, 1, 1, 1, 0, 0, 0]), 2, key),  # two windows of 1 and 2 pieces
        TwoLevelOrder(np.array([0, 0, 0, 0, 1, 1, 1]), 1, key),
    ]
    dataset = SimpleNamespace(pieces=[SimpleNamespace(range=SimpleNamespace(size=size)) for size in sizes], copied=7)
    least = 7 + (70 + 30 + 10) + (60 + 50)
    check_limit(SimpleNamespace(**vars(dataset), limit=least), orders)
    with pytest.raises(
        UserError, match=rf"at least {least:,} bytes .*text \(7\) and two windows of 3 pieces .*found {least - 1:,};"
    ):
        check_limit(SimpleNamespace(**vars(dataset), limit=least - 1), orders)
