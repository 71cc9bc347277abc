"""The state of a run, which every step takes and returns."""

from typing import Any

import flax.struct
import jax

from plmjax.objectives.objective import LossInputs


@flax.struct.dataclass
class TrainState:
    """The state of a run.

    step: int32 scalar, optimizer steps done.
    params: the model's parameters, float32, unboxed.
    collections: further collections of the model's variables, name -> tree; empty for most.
    constants: arrays that are neither differentiated nor updated; made once a run, saved beside its checkpoints.
    optimizer_state: optax state.
    carry: state of the model from step to step; empty for most.
    key: uint32 [2], data of the run's threefry key; never advanced, folded with the step.
    """

    step: jax.Array
    params: Any
    optimizer_state: Any
    carry: Any
    key: jax.Array
    collections: Any = flax.struct.field(default_factory=dict)
    constants: Any = ()

    @property
    def loss_inputs(self) -> LossInputs:
        """The part of the state that an objective uses."""
        return LossInputs(self.params, self.constants, self.collections, self.carry)
