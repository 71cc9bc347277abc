"""Distillation of the distributions that a teacher predicts (Hinton et al. 2015, arXiv 1503.02531).

    hard x (the task's own loss) + soft x T^2 mean over predictions of KL(softmax(t / T), softmax(s / T))

t and s are the logits of teacher and student. A prediction is the label of a text or a word, a choice, an end of an
answer, or a token of a masked language model, a decoder or an encoder-decoder (word-level distillation, Kim and Rush
2016, section 3.1).
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.compression.distillation import stored
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distilled import Distillation
from plmjax.compression.distillation.terms import SoftTargets, Term
from plmjax.errors import ABOVE_0, FROM_0, check_ranges
from plmjax.objectives.objective import Batch, ConstantSources, Objective


@dataclasses.dataclass(frozen=True)
class SoftTargetDistillation(Distillation):
    """A student learns the distributions of its teacher."""

    name: ClassVar[str] = "soft_targets"

    soft: float = 0.5
    """Factor of the divergence from the teacher's distributions."""
    temperature: float = 2.0
    """Temperature T of both distributions; a higher one gives unlikely classes more weight."""
    top_k: int = 0
    """Number of the teacher's largest scores that are computed once, before training, and kept for each prediction of a
    task; 0 computes the teacher in each step.
    """
    stored: str = ""
    """File of these scores, which plmjax compress distil writes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("compression", self, soft=FROM_0, temperature=ABOVE_0, top_k=FROM_0)

    def terms(self) -> tuple[Term, ...]:
        return (SoftTargets(self.soft, self.temperature),) if self.soft else ()

    def teacher_constants(self, objective: Objective, sources: ConstantSources) -> Any:
        """Return the parameters of the teacher, or its stored scores."""
        if not self.stored:
            return super().teacher_constants(objective, sources)
        return {name: jnp.asarray(array) for name, array in stored.read(self.stored).items()}

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
        if not self.stored:
            return super().teacher_outputs(objective, module, constants, batch=batch, key=key, **requested)
        return Activations(self.teacher, None, stored.look_up(objective, batch, constants))

    @property
    def is_live(self) -> bool:
        """True unless the scores are stored."""
        return not self.stored
