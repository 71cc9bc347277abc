"""The state of a run, which every step takes and returns."""

from typing import Any

import flax.struct
import jax

from plmjax.objectives.objective import LossInputs


@flax.struct.dataclass
class TrainState:
    """The state of a run.

    step: int32 scalar, number of finished optimizer steps.
    params: the parameters of the model, float32, unboxed.
    collections: other collections of the model's variables, name -> tree; empty for most models.
    constants: arrays that are neither differentiated nor updated; computed once per run, and saved beside its
        checkpoints.
    optimizer_state: optax state.
    carry: state of the model from step to step; empty for most models.
    key: uint32 [2], data of the run's threefry key. It never changes; each step folds in its number.
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
        """Return the part of the state that an objective uses."""
        return LossInputs(self.params, self.constants, self.collections, self.carry, step=self.step)
