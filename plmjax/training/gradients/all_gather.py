"""The gradient on any mesh: a copy of all parameters is gathered once, and XLA partitions the computation (ZeRO)."""

import dataclasses
from typing import Any

import jax

from plmjax.objectives.objective import Batch, LossInputs, LossSums
from plmjax.parallel.parameter_shards import ParameterShards
from plmjax.training.gradients import Gradient, Loss, Weights
from plmjax.training.gradients.microbatches import accumulate


@dataclasses.dataclass(frozen=True, eq=False)
class AllGather:
    """Gathers a copy of the parameters on every device, and reduce-scatters the gradient of the copy into the shards.

    carry_axes: logical axis names of the carry's leaves.
    microbatches: number of microbatches of a batch.
    data_shards: number of shards of a microbatch along the mesh's data axis.
    """

    shards: ParameterShards
    carry_axes: Any
    microbatches: int
    data_shards: int

    def __call__(
        self, loss: Loss, inputs: LossInputs, weights: Weights, *, batch: Batch, key: jax.Array
    ) -> tuple[Gradient, LossSums]:
        gradient, sums = accumulate(
            loss,
            self.gather(inputs, batch),
            weights,
            batch=batch,
            key=key,
            carry_axes=self.carry_axes,
            microbatches=self.microbatches,
            shards=self.data_shards,
            add_shards=self.shards.add,
        )
        return Gradient(self.shards.scatter(gradient.params), gradient.rows), sums

    def gather(self, inputs: LossInputs, batch: Batch) -> LossInputs:
        """Return the inputs with the gathered parameters, as a forward pass needs them."""
        return inputs.replace(params=self.shards.gather(inputs.params))
