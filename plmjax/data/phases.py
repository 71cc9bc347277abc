"""Batches of a run whose phases may have different texts, mixtures or layouts."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.mixing import Portion
from plmjax.data.pipeline import Batches, RowSource


class PhasesSource:
    """Reads the rows of each phase from the source of that phase.

    sources: one for each phase of the experiment; phases with the same text may share one.
    """

    def __init__(self, sources: Sequence[RowSource]):
        self._sources = tuple(sources)

    @property
    def vocabulary(self) -> Vocabulary:
        return self._sources[0].vocabulary

    @property
    def unigram_counts(self) -> np.ndarray:
        """Number of times that each token is a target in the text of the first phase, int64 [V]."""
        return self._sources[0].unigram_counts

    @property
    def fingerprint(self) -> str:
        """Digest of the texts of all phases."""
        return hashlib.sha256("".join(source.fingerprint for source in self._sources).encode()).hexdigest()

    def in_phase(self, phase: Any) -> RowSource:
        return self._sources[phase.declared]

    def batch(self, phase: Any) -> dict[str, Any]:
        return self.in_phase(phase).batch(phase)

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> Batches:
        return self.in_phase(phase).train(phase, start, places)

    def evaluation(self, phase: Any, places: np.ndarray | None = None) -> Batches:
        return self.in_phase(phase).evaluation(phase, places)

    def portions(self, phases: Sequence[Any], step: int) -> dict[str, Portion]:
        """Return the portion of each source of the mixture in the phase of step `step`; empty without a mixture."""
        now = self.in_phase(next((phase for phase in phases if step <= phase.last_step), phases[-1]))
        if not hasattr(now, "portions"):
            return {}
        return now.portions([phase for phase in phases if self.in_phase(phase) is now], step)
