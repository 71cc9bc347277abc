"""Rows of a layout for the tests of this folder."""

import random
from typing import Any

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import store
from plmjax.data.layouts import Layout
from tests.data.corpora import documents

V = 300
WORDS = Vocabulary.placeholder(V)
TEXTS = {"train": documents(40, V), "validation": documents(8, V, seed=1)}


def rows_of(
    dataset: store.Dataset, layout: Layout, *, length: int = 64, split: str = "train", vocabulary=WORDS, seed: int = 0
) -> Any:
    return layout.rows(dataset, split, length, vocabulary=vocabulary, seed=seed)


def all_fields(rows: Any) -> dict[str, np.ndarray]:
    return rows.fields(np.arange(rows.count))


def shapes(fields: dict[str, Any]) -> dict[str, tuple]:
    """Name -> shape and type of an array, or of the shape that a layout promises."""
    return {name: (field.shape, field.dtype) for name, field in fields.items()}


class PythonDraws:
    """The questions of published programs answered by Python's generator, as there."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def begin(self, sentence: int) -> None:
        """Nothing is drawn at the begin of a sequence."""

    def next_pair(self) -> None:
        """Nor before a pair."""

    def is_short(self, probability: float) -> bool:
        return self.generator.random() < probability

    is_single = is_random = is_swapped = is_short

    def short_length(self, low: int, high: int) -> int:
        return self.generator.randint(low, high)

    split_at = short_length

    def start(self, high: int) -> int:
        return self.generator.randint(0, high)

    def document(self, attempt: int, high: int) -> int:
        return self.start(high)

    def coin(self, number: int) -> bool:
        return self.is_short(0.5)

    front = coin
