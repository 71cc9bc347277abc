"""Distillation: a student is trained beside its teacher, whose parameters are constants of the run.

    loss = hard x (loss of the experiment) + sum over terms of  factor x (distance between student and teacher)

Each step computes a forward pass of the teacher on the student's batch, without dropout. The teacher's parameters are
sharded like the student's. They are saved once, beside the checkpoints.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax

from plmjax.compression.compression import Compression
from plmjax.compression.distillation.captured_activations import Activations, capture, one_token_inputs
from plmjax.compression.distillation.terms import Term, rows_and_length
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import FROM_0, UserError, check_ranges
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective, apply
from plmjax.objectives.wrapper import ADDED, ObjectiveWrapper

INNER, TEACHER = "objective", "teacher"
"""Names of the two parts of the constants."""


@dataclasses.dataclass(frozen=True)
class Distillation(Compression):
    """Base class of all distillations. A subclass defines `terms`."""

    verb: ClassVar[str] = "distil"
    random_layers: ClassVar[bool] = False
    """True if a student begins with random layers and all other parameters of its teacher, unless the command names a
    checkpoint; false if it begins with some layers of its teacher.
    """

    teacher: ModelConfig | None = None
    """Sizes of the teacher, which the checkpoint has."""
    checkpoint: str = ""
    """Run directory or checkpoint of the teacher."""
    hard: float = 0.5
    """Factor of the experiment's own loss, without the teacher; 0 leaves it out."""

    def __post_init__(self) -> None:
        check_ranges("compression", self, hard=FROM_0)

    def terms(self) -> tuple[Term, ...]:
        """Return the terms whose factors are not 0."""
        raise NotImplementedError(f"{type(self).__name__} must define `terms`.")

    def teacher_constants(self, objective: Objective, sources: ConstantSources) -> Any:
        """Return the parameters of the teacher, boxed with their logical axes.

        Raises:
            UserError: the settings name no teacher, or its checkpoint has other parameters.
        """
        if self.teacher is None:
            raise UserError(
                "Expected the sizes of a teacher in --compression.teacher, found none; train the student with plmjax "
                "compress distil."
            )

        def init(key: jax.Array) -> Any:
            return objective.module(self.teacher, Execution()).init(key, **one_token_inputs(self.teacher))["params"]

        return sources.parameters(self.checkpoint, init)

    def teacher_outputs(
        self,
        objective: Objective,
        module: nn.Module,
        constants: Any,
        *,
        batch: Batch,
        key: jax.Array,
        **requested: bool,
    ) -> Activations:
        """Return the activations of the teacher on a corrupted batch, without dropout.

        module: the student. constants: the result of `teacher_constants`. requested: the arguments of `capture`.
        """
        teacher = objective.module(self.teacher, module.execution)
        with capture(self.teacher, constants, **requested) as activations:
            apply(objective, teacher, LossInputs(constants), batch=batch, key=key, training=False)
        return activations

    @property
    def is_live(self) -> bool:
        """True if each step computes the teacher."""
        return True

    def extra_parameters(self, student: ModelConfig, key: jax.Array) -> dict[str, Any]:
        """Return the additional parameters of the distillation, boxed with their logical axes."""
        return {}

    def training_objective(self, objective: Objective, steps: int) -> Objective:
        return Distilled(objective, self)

    def evaluation_objective(self, objective: Objective, steps: int) -> Objective:
        """Return the objective without the terms: an evaluation does not compute the teacher."""
        return EvaluationWithTeacher(objective, self)

    def check(self, model: ModelConfig, objective: Objective) -> None:
        """Raise UserError for a student or an objective that the terms do not support."""
        if jax.tree.leaves(jax.eval_shape(lambda: objective.initial_carry(self.teacher, 1, 8))):
            raise UserError(
                f"Expected a model without a state from batch to batch, found {type(objective).__name__}; distil "
                f"another model."
            )
        terms = self.terms()
        if not terms:
            raise UserError(
                "Expected a term between the student and its teacher, found factors of 0 only; set one of "
                "--compression's factors above 0."
            )
        for term in terms:
            term.check(model, self.teacher, objective)
        module = objective.module(self.teacher, Execution())
        variables = jax.eval_shape(lambda: module.init(jax.random.key(0), **one_token_inputs(self.teacher)))
        if further := sorted(variables.keys() - {"params", "intermediates"}):
            raise UserError(
                f"Expected a teacher whose parameters are all that it computes with, found {self.teacher.system} with "
                f"{', '.join(further)}; distil another model."
            )


@dataclasses.dataclass(frozen=True)
class EvaluationWithTeacher(ObjectiveWrapper):
    """The evaluation objective of a distillation: it has the constants of the teacher, but does not run the teacher."""

    distillation: Distillation

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        own = self.inner.constants(config, sources)
        found = {TEACHER: self.distillation.teacher_constants(self.inner, sources)}
        return found | ({INNER: own} if jax.tree.leaves(own) else {})

    def inner_constants(self, constants: Any) -> Any:
        return constants.get(INNER, ())


@dataclasses.dataclass(frozen=True)
class Distilled(EvaluationWithTeacher):
    """The training objective of a distillation: the loss of the experiment and the terms."""

    def extra_parameters(self, module: nn.Module, params: Any, key: jax.Array) -> dict[str, Any]:
        return self.distillation.extra_parameters(module.config, jax.random.fold_in(key, 1))

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the weights of the inner objective, unless its factor is 0, and those of the terms."""
        inner = self.inner.weights(batch) if self.distillation.hard else {}
        return inner | {term.name: term.weight(self.inner, batch) for term in self.distillation.terms()}

    def coefficients(self) -> dict[str, float]:
        return self.inner.coefficients() | {term.name: term.factor for term in self.distillation.terms()}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        distillation, inputs = self.distillation, self.inner_inputs(loss_inputs)
        terms = distillation.terms()
        requested = self._requested(terms)
        with capture(module.config, inputs.params, **requested) as student:
            if distillation.hard:
                sums = self.inner.sums(module, inputs, batch, key, training=training)
            else:
                apply(self.inner, module, inputs, batch=batch, key=key, training=training)
                sums = LossSums({}, {}, inputs.carry, inputs.collections)
        teacher = distillation.teacher_outputs(
            self.inner, module, loss_inputs.constants[TEACHER], batch=batch, key=key, **requested
        )
        student.step = teacher.step = loss_inputs.step
        found, metrics = {}, {}
        added = loss_inputs.params.get(ADDED, {})
        for term in terms:
            found[term.name] = term.sum(self.inner, student, teacher, batch=batch, added=added)
            metrics[f"{term.name}_loss"] = found[term.name], term.weight(self.inner, batch)
            metrics |= term.metrics(self.inner, student, teacher, batch)
        hard = {name: distillation.hard * loss for name, loss in sums.losses.items()}
        return sums.replace(losses=hard | found, metrics=sums.metrics | metrics)

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        terms, teacher = self.distillation.terms(), self.distillation.teacher
        heads = any(term.needs_outputs for term in terms)
        student = self._model_flops(config, batch, terms, head=heads or self.distillation.hard > 0)
        taught = self._model_flops(teacher, batch, terms, head=heads) / 3 if self.distillation.is_live else 0.0
        return student + taught + sum(term.flops(config, teacher, batch) for term in terms)

    def _model_flops(
        self, config: ModelConfig, batch: dict[str, jax.ShapeDtypeStruct], terms: tuple[Term, ...], *, head: bool
    ) -> float:
        rows, length = rows_and_length(batch)
        if not head:
            return config.train_flops(rows, length, 0)
        flops = self.inner.train_flops(config, batch)
        if any(term.every_token for term in terms) and isinstance(self.inner, MaskedLanguageModel):
            flops += config.train_flops(rows, length, length)
            flops -= config.train_flops(rows, length, self.inner.predictions(batch))
        return flops

    def _requested(self, terms: tuple[Term, ...]) -> dict[str, bool]:
        return {
            "hidden_states": any(term.needs_hidden_states for term in terms),
            "every_token": any(term.every_token for term in terms),
            "scores": any(term.needs_outputs for term in terms),
        }
