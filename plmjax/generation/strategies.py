"""Conversion of decoding options to the strategy that chooses tokens: greedy, sampling or beam search."""

from typing import Any

from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.options import BEAMS, DRAWN, Decoding
from plmjax.generation.sampling import Greedy, Sampling
from plmjax.generation.search import Strategy


def strategy_of(decoding: Decoding, sequences: int = 1) -> Strategy:
    """Return the strategy for these options. Fields that are None have the strategy's default.

    sequences: number of texts for each prompt, for sampling and beam search.

    Raises:
        UserError: a number is out of its range.
    """

    def explicit(*names: str) -> dict[str, Any]:
        return {name: getattr(decoding, name) for name in names if getattr(decoding, name) is not None}

    if (decoding.beams or 1) > 1:
        return BeamSearch(sequences=sequences, **explicit("beams", *BEAMS))
    return Sampling(sequences=sequences, **explicit(*DRAWN)) if decoding.draws else Greedy()
