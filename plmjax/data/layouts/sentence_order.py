"""Pairs of consecutive texts in their order or swapped (google-research/albert create_pretraining_data.py)."""

import dataclasses
from typing import ClassVar

from plmjax.data.layouts.sentence_pairs import SentencePairs


@dataclasses.dataclass(frozen=True)
class SentenceOrder(SentencePairs):
    """Sentence pairs whose parts are consecutive, in their order or swapped.

    Adds what sentence pairs do, but sentence_order_labels (0 = in order; 1 = swapped, or B is from another document)
    and sentence_order_weights instead of those of the next sentence.
    """

    labels: ClassVar[str] = "sentence_order"

    random_next_probability: float = 0.0
    """How often the second part comes from another document; it always does where one sentence is left."""
    swap_probability: float = 0.5
    """How often the parts of the other pairs are swapped."""
    duplicates: int = 40
    """Passes over the text, each with draws of its own, that make up one epoch."""
