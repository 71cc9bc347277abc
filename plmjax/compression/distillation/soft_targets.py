"""Distillation of the distributions that a teacher predicts (Hinton et al. 2015, arXiv 1503.02531).

    hard x (the task's own loss) + soft x T^2 mean over predictions of KL(softmax(t / T), softmax(s / T))

A prediction is the label of a text or a word, a choice, an end of an answer, or a token: of a masked language model, a
decoder or an encoder-decoder (word-level distillation, Kim and Rush 2016, section 3.1).
"""

import dataclasses
from typing import ClassVar

from plmjax.compression.distillation.distilled import Distillation
from plmjax.compression.distillation.terms import SoftTargets, Term
from plmjax.errors import ABOVE_0, FROM_0, check_ranges


@dataclasses.dataclass(frozen=True)
class SoftTargetDistillation(Distillation):
    """A student learns the distributions of its teacher."""

    name: ClassVar[str] = "soft_targets"

    soft: float = 0.5
    """Factor of the divergence from the teacher's distributions."""
    temperature: float = 2.0
    """Temperature T of both distributions; a higher one gives unlikely classes more weight."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        check_ranges("compression", self, soft=FROM_0, temperature=ABOVE_0)

    def terms(self) -> tuple[Term, ...]:
        """Return the divergence."""
        return (SoftTargets(self.soft, self.temperature),) if self.soft else ()
