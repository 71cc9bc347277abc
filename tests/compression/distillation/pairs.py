"""A small student beside a small teacher, both of random parameters, on one batch."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.compression.distillation.distilled import TEACHER, Distillation, one_token
from plmjax.contracts.execution import Execution
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective
from plmjax.training import phases
from tests.families import STEPS
from tests.strangers import experiments

TEACHERS = {"bert": "num_hidden_layers", "classification": "num_hidden_layers", "gpt2": "n_layer"}
"""Name of a run -> the field for the layers of its model."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A distillation on one corrupted batch. inner: the objective without it."""

    inner: Objective
    objective: Objective
    student: nn.Module
    teacher: nn.Module
    inputs: LossInputs
    batch: Batch

    @property
    def sums(self) -> LossSums:
        """The sums of the train step, without dropout."""
        return self.objective.sums(self.student, self.inputs, self.batch, jax.random.key(1), training=True)

    @property
    def weights(self) -> dict[str, float]:
        return {name: float(weight) for name, weight in self.objective.weights(self.batch).items()}

    def mean(self, term: str) -> float:
        """The mean of a term, as it is multiplied by its factor."""
        return float(self.sums.losses[term]) / self.weights[term]

    def outputs(self, role: str, **changes: Any) -> Any:
        """The outputs of the student or of the teacher with all hidden states."""
        module = getattr(self, role)
        params = self.inputs.constants[TEACHER] if role == "teacher" else self.inputs.params
        params = {name: part for name, part in params.items() if name != "compression"}
        inputs = self.inner.model_inputs(self.batch) | changes
        return module.apply({"params": params}, **inputs, output_hidden_states=True)


@functools.cache
def pair(
    name: str, distillation: Distillation, student: tuple[tuple[str, Any], ...] = (), teacher_layers: int = 4
) -> Pair:
    """The run `name` of tests/families as the student of a deeper teacher. student: other sizes of it."""
    make, source = STEPS[name]
    run = experiments.without_dropout(make())
    wide = {"initializer_range": 0.3}  # distributions and scores of tokens that differ
    run = experiments.changed(run, model=wide | dict(student))
    teacher = dataclasses.replace(make().model, **wide | {TEACHERS[name]: teacher_layers})
    distillation = dataclasses.replace(distillation, teacher=teacher)
    distillation.check(run.model, run.objective)
    objective = distillation.trained(run.objective, 10)
    (phase,) = phases.resolve(experiments.changed(run, training={"steps": 2, "batch_size": 5}))
    source = source(run.data)
    batch = jax.tree.map(jnp.asarray, next(iter(source.train(phase, 0))))
    batch = run.objective.corrupt(batch, jax.random.key(2), source.vocabulary)
    modules = [run.objective.module(config, Execution()) for config in (run.model, teacher)]
    taught = jax.jit(modules[1].init)(jax.random.key(4), **one_token(teacher))["params"]
    constants = {TEACHER: shifted(taught)}
    params = objective.init(modules[0], jax.random.key(3), batch, constants, ())["params"]
    return Pair(run.objective, objective, *modules, LossInputs(shifted(params), constants), batch)


def shifted(params: Any) -> Any:
    """Parameters without their boxes, none of them 0."""
    draws = np.random.default_rng(5)
    return jax.tree.map(lambda x: x + 0.1 * jnp.asarray(draws.normal(size=x.shape), x.dtype), nn.meta.unbox(params))
