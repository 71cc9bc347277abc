"""The gradient of a batch, summed over all devices. A program uses one of three classes with the same signature.

`all_gather.AllGather` gathers a copy of all parameters before the computation; `rings.RingExchange` passes the shards
of stacked layers from device to device during the computation; `looked_up_rows.LookedUpRows` looks up the rows of large
tables and leaves all other parameters to `AllGather`. Each splits a batch into microbatches
(`microbatches.accumulate`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from plmjax.objectives.objective import Batch, LossInputs, LossSums

Weights = dict[str, jax.Array]
"""Term of the loss -> weight of the whole batch."""
Loss = Callable[[LossInputs, Weights, Batch, jax.Array], tuple[jax.Array, LossSums]]
"""(inputs, weights, microbatch, key of dropout) -> (part of the batch's loss, sums)."""


class Gradient(NamedTuple):
    """The gradient of a loss with respect to `LossInputs.params`, and to the rows of tables in `LossInputs.rows`."""

    params: Any
    rows: Any


class GradientOf(Protocol):
    """A method to compute the gradient of a batch on the devices of a mesh."""

    def __call__(
        self, loss: Loss, inputs: LossInputs, weights: Weights, *, batch: Batch, key: jax.Array
    ) -> tuple[Gradient, LossSums]:
        """Return (gradient, sums) of a batch. `inputs` has the float32 parameter shards of each device."""
