"""A small student beside a small teacher, both of random parameters, on one batch."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.compression.distillation.distilled import TEACHER, Distillation
from plmjax.contracts.execution import Execution
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective
from plmjax.objectives.wrapper import ADDED
from tests.families import STEPS
from tests.systems.modules import drawn, random_params
from tests.third_party import experiments


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A distillation on one corrupted batch. inner: the objective without it."""

    inner: Objective
    objective: Objective
    student: nn.Module
    teacher: nn.Module
    inputs: LossInputs
    batch: Batch

    @functools.cached_property
    def sums(self) -> LossSums:
        """The sums of the train step, without dropout."""
        return self.sums_of(self.objective)

    @functools.cached_property
    def plain(self) -> LossSums:
        """The sums of the objective without the distillation."""
        return self.sums_of(self.inner)

    def sums_of(self, objective: Objective) -> LossSums:
        compute = jax.jit(functools.partial(objective.sums, self.student, training=True))
        return jax.device_get(compute(self.inputs, self.batch, jax.random.key(1)))

    @property
    def weights(self) -> dict[str, float]:
        return {name: float(weight) for name, weight in self.objective.weights(self.batch).items()}

    def mean(self, term: str) -> float:
        """The mean of a term, as it is multiplied by its factor."""
        return float(self.sums.losses[term]) / self.weights[term]

    @functools.cache  # noqa: B019 - pairs live as long as the tests
    def outputs(self, role: str, every_token: bool = False) -> Any:
        """The outputs of the student or of the teacher with all hidden states, on the host."""
        module = getattr(self, role)
        params = self.inputs.constants[TEACHER] if role == "teacher" else self.inputs.params
        params = {name: part for name, part in params.items() if name != ADDED}
        inputs = self.inner.model_inputs(self.batch) | ({"masked_positions": None} if every_token else {})

        def compute(params: Any, inputs: Batch) -> Any:
            outputs = module.apply({"params": params}, **inputs, output_hidden_states=True)
            scores = getattr(outputs, "scores", None)
            return outputs.replace(scores=scores.logits()) if scores is not None else outputs

        return jax.device_get(jax.jit(compute)(params, inputs))


@functools.cache
def pair(
    name: str, distillation: Distillation, student: tuple[tuple[str, Any], ...] = (), teacher_layers: int = 4
) -> Pair:
    """The run `name` of tests/families as the student of a deeper teacher. student: other sizes of it."""
    make, source = STEPS[name]
    run = experiments.without_dropout(make())
    run = experiments.changed(run, model=dict(student))
    teacher = make().model.with_depth(teacher_layers)
    distillation = dataclasses.replace(distillation, teacher=teacher)
    distillation.check(run.model, run.objective)
    objective = distillation.training_objective(run.objective, 10)
    (phase,) = experiments.changed(run, training={"steps": 2, "batch_size": 5}).resolved_phases
    source = source(run.data)
    batch = jax.tree.map(jnp.asarray, next(iter(source.train(phase, 0))))
    batch = jax.jit(functools.partial(run.objective.corrupt, vocabulary=source.vocabulary))(batch, jax.random.key(2))
    modules = [run.objective.module(config, Execution()) for config in (run.model, teacher)]
    constants, key = {TEACHER: random_params(modules[1], seed=4)}, jax.random.key(3)
    init = functools.partial(objective.init, modules[0], carry=())
    shapes = jax.eval_shape(init, key, batch, constants=constants)["params"]
    return Pair(run.objective, objective, *modules, LossInputs(drawn(shapes, seed=3), constants), batch)


def shifted(params: Any) -> Any:
    """Parameters without their boxes, none of them 0."""
    draws = np.random.default_rng(5)
    values = jax.device_get(nn.meta.unbox(params))
    return jax.tree.map(lambda x: x + 0.1 * draws.normal(size=x.shape).astype(x.dtype), values)
