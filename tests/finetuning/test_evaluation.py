"""Evaluation on a whole file: the sums and outputs of the run's own program, put in the order of the sequences."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.finetuning.evaluation import Forward
from plmjax.objectives.objective import LossInputs

ROWS = [[[2, 0]], [[1, -1]]]
"""Two batches of one row with two places for sequences; the second row has one."""


def test_losses_and_outputs_are_those_of_the_program_of_the_run() -> None:
    batches = iter(ROWS)

    def evaluate(loss_inputs: LossInputs, batch: Any, key: jax.Array) -> tuple[Any, dict, tuple]:
        examples = np.array(next(batches))
        weight = np.sum(examples >= 0)
        return (), {"loss": (3.0 * weight, weight), "accuracy": (0, 1)}, (10.0 * examples, examples, examples)

    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"row_ids": jax.ShapeDtypeStruct((1,), np.int32, sharding=place)}
    program = SimpleNamespace(evaluation_phase=None, evaluation_batch=shapes, evaluate=evaluate)
    source = SimpleNamespace(
        evaluation=lambda phase, rows: iter([{"row_ids": np.zeros(1, np.int32)}] * 2),
        validation_rows=SimpleNamespace(encoded=Sequences()),
    )
    objective = SimpleNamespace(weights=lambda batch: {"task": jnp.zeros(())}, generates=False, per_token=False)
    run = SimpleNamespace(objective=objective, training=SimpleNamespace(seed=0))
    means, outputs = Forward(run, None)(program, LossInputs(()), source)
    assert means == {"loss": 3.0} and outputs == [0.0, 10.0, 20.0]


class Sequences:
    """Three sequences of one token."""

    offsets = np.arange(4)

    def __len__(self) -> int:
        return 3
