"""Rows of a layout for the tests of this folder."""

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
