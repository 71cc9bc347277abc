"""DistilBERT's triple loss (Sanh et al. 2019, arXiv 1910.01108; huggingface/transformers examples/distillation).

    2 x (nats of the masked tokens) + 5 x T^2 KL(teacher, student) + 1 x (1 - cos(teacher's, student's last states))

at T = 2. The divergence is a mean over all tokens but padding; `restrict` limits it to the masked tokens, as the
released `restrict_ce_to_mask` does. The factors are those of the released command, not the defaults of its code. The
student begins with layers of its teacher. The objective of plmjax/objectives/distilbert.py masks rare tokens more
often, as the released code does.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distilled import Distillation
from plmjax.compression.distillation.terms import SoftTargets, Term, check_encoders, positive, token_mask
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import ABOVE_0, FROM_0, check_ranges
from plmjax.objectives.objective import Batch, Objective


@dataclasses.dataclass(frozen=True)
class Cosine(Term):
    """The cosine distance between the last hidden states of both models, a mean over all tokens but padding."""

    name: ClassVar[str] = "cosine"

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        return positive(jnp.sum(token_mask(batch)))

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        distances = losses.cosine_distance(student.last_hidden_state, teacher.last_hidden_state)
        return jnp.sum(token_mask(batch) * distances)

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError for models whose hidden states cannot be compared."""
        check_encoders(student, teacher, objective, widths=True)


@dataclasses.dataclass(frozen=True)
class DistilBertDistillation(Distillation):
    """A masked language model learns from its labels, and from its teacher's distributions and last hidden states."""

    name: ClassVar[str] = "distilbert"

    hard: float = 2.0
    """Factor of the experiment's own loss, without the teacher; 0 leaves it out."""
    soft: float = 5.0
    """Factor of the divergence from the teacher's distributions."""
    cosine: float = 1.0
    """Factor of the cosine distance between the last hidden states."""
    temperature: float = 2.0
    """Temperature T of both distributions."""
    restrict: bool = False
    """Compare the distributions of the masked tokens only, not of all tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("compression", self, soft=FROM_0, cosine=FROM_0, temperature=ABOVE_0)

    def terms(self) -> tuple[Term, ...]:
        soft = SoftTargets(self.soft, self.temperature, all_tokens=not self.restrict)
        return tuple(term for term in (soft, Cosine(self.cosine)) if term.factor)
