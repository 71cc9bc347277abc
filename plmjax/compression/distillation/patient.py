"""Patient knowledge distillation, PKD (Sun et al., EMNLP 2019, arXiv 1908.09355; intersun/PKD-for-BERT, KD_loss.py).

    hard x (nats of the labels) + soft x T^2 KL(teacher, student) + patience x |t / |t| - s / |s||^2

The third term compares s, the hidden states of [CLS] after all layers of the student except its last, with t, those
after as many layers of the teacher (section 3.2). With alpha and beta of the paper: soft = alpha, hard = 1 - alpha,
patience = beta. Means are those of the released code, torch's `reduction="mean"`: the divergence is divided by texts x
classes, the squares by texts x layers x D.

Deviation: the third term is float32; the released code rounds it to float16.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distilled import Distillation
from plmjax.compression.distillation.terms import SoftTargets, Term, check_encoders, positive
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import ABOVE_0, FROM_0, UserError, check_choice, check_ranges
from plmjax.finetuning.tasks.sequences import SequenceObjective
from plmjax.finetuning.tasks.task import exists
from plmjax.layers.tokens import gather_tokens
from plmjax.objectives.objective import Batch, Objective

STRATEGIES = ("skip", "last")


@dataclasses.dataclass(frozen=True)
class Patience(Term):
    """The squared distance between normalized states of [CLS], a mean over texts, layers and features.

    strategy: skip or last, see `PatientDistillation`.
    """

    name: ClassVar[str] = "patience"
    needs_hidden_states: ClassVar[bool] = True

    strategy: str = "skip"

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        return positive(jnp.sum(exists(batch)))

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        """Return the sum over texts of the mean over layers and features."""
        mine, taught = patient_layers(student.config.depth, teacher.config.depth, self.strategy)
        positions = batch["cls_positions"].reshape(-1, batch["cls_positions"].shape[-1])

        def states(activations: Activations, layers: tuple[int, ...]) -> jax.Array:  # [layers B K D]
            chosen = [gather_tokens(activations.hidden_states[layer], positions) for layer in layers]
            return losses.normalize(jnp.stack(chosen))

        distances = jnp.mean(losses.squared_distance(states(student, mine), states(teacher, taught)), axis=0)
        return jnp.sum(exists(batch).reshape(distances.shape) * distances)

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError for models or an objective whose hidden states of [CLS] cannot be compared."""
        check_encoders(student, teacher, objective, widths=True)
        if not isinstance(objective, SequenceObjective):
            raise UserError(
                f"Expected a task with an output for each text, whose [CLS] is compared, found "
                f"{type(objective).__name__}; take --method soft_targets."
            )
        if not 1 < student.depth <= teacher.depth:
            raise UserError(
                f"Expected a student of 2 to {teacher.depth} layers, of which all but the last are compared with its "
                f"teacher's, found {student.depth}; change --layers."
            )


def patient_layers(student: int, teacher: int, strategy: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the compared layers of the student and of its teacher, counted from 1, the lowest first."""
    mine = tuple(range(1, student))
    if strategy == "last":
        return mine, tuple(teacher - student + layer for layer in mine)
    return mine, tuple(layer * teacher // student for layer in mine)


@dataclasses.dataclass(frozen=True)
class PatientDistillation(Distillation):
    """A student of a task learns from labels, from its teacher's distributions, and from its layers."""

    name: ClassVar[str] = "patient"

    soft: float = 0.5
    """Factor of the divergence from the teacher's distributions, alpha; the paper searches 0.2, 0.5 and 0.7."""
    temperature: float = 5.0
    """Temperature T of both distributions; the paper searches 5, 10 and 20."""
    patience: float = 100.0
    """Factor of the distance between layers, beta; the paper searches 10, 100, 500 and 1,000."""
    strategy: str = "skip"
    """Layers of the teacher: skip takes every Nth one (2, 4, 6, 8, 10 of 12 for a student of 6), last those below the
    top (7 to 11).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("compression", self, soft=FROM_0, patience=FROM_0, temperature=ABOVE_0)
        check_choice("--compression.strategy", self.strategy, STRATEGIES)

    def terms(self) -> tuple[Term, ...]:
        soft = SoftTargets(self.soft, self.temperature, by_classes=True)
        return tuple(term for term in (soft, Patience(self.patience, self.strategy)) if term.factor)
