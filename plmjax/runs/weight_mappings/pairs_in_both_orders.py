"""Classification of unordered pairs, such as two sentences to compare, in both orders (Radford et al. 2018)."""

import dataclasses
from typing import Any

from plmjax.errors import UserError
from plmjax.experiment import WeightMapping


@dataclasses.dataclass(frozen=True)
class PairsInBothOrders(WeightMapping):
    """The checkpoint's model, set to read a pair in both orders and to classify the sum of the two vectors."""

    def model(self, origin: Any) -> Any:
        """Return the same config with `both_orders` true.

        Raises:
            UserError: the checkpoint's model has no such setting.
        """
        if not hasattr(origin, "both_orders"):
            raise UserError(
                f"Expected a GPT, which reads a pair in both orders, found {type(origin).__name__}; leave "
                f"{type(self).__name__} out."
            )
        return dataclasses.replace(origin, both_orders=True)
