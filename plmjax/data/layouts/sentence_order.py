"""Pairs of consecutive texts, in order or swapped (google-research/albert create_pretraining_data.py)."""

import dataclasses
from typing import ClassVar

from plmjax.data.layouts.sentence_pairs import SentencePairs


@dataclasses.dataclass(frozen=True)
class SentenceOrder(SentencePairs):
    """Sentence pairs whose parts are consecutive, in order or swapped.

    Adds the fields of sentence pairs, with sentence_order_labels (0 = in order; 1 = swapped, or B is from another
    document) and sentence_order_weights instead of next_sentence_labels and next_sentence_weights.
    """

    labels: ClassVar[str] = "sentence_order"

    random_next_probability: float = 0.0
    """Probability that the second part comes from another document. It always does if only one sentence is left."""
    swap_probability: float = 0.5
    """Probability that the parts are swapped if both come from one document."""
    duplicates: int = 40
    """Number of passes over the text, each with its own random draws, in one epoch."""
