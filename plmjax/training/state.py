"""What a step starts from and leaves behind."""

from typing import Any

import flax.struct
import jax


@flax.struct.dataclass
class State:
    """Everything that a run changes.

    step: int32 scalar, optimizer steps done.
    params: the model's parameters, float32, unboxed.
    optimizer_state: optax state.
    carry: what the model takes from step to step; empty for most.
    key: uint32 [2], data of the run's threefry key; never advanced, folded with the step.
    """

    step: jax.Array
    params: Any
    optimizer_state: Any
    carry: Any
    key: jax.Array
