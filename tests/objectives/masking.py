"""Shared by the tests of masking: rows of packed sequences, and which of their tokens an objective chose."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs, Objective

VOCABULARY = dataclasses.replace(Vocabulary.placeholder(1000), continuation=np.arange(1000) % 3 == 0)
CLS, SEP, MASK = 2, 3, 4


def batch_of(lengths: list[list[int]], row: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of packed sequences [CLS] ... [SEP] of these lengths, filled with padding."""
    random = np.random.default_rng(seed)
    ids, segments = np.zeros((2, len(lengths), row), np.int32)
    cls_positions = np.zeros((len(lengths), max(map(len, lengths))), np.int32)
    for b, sequences in enumerate(lengths):
        start = 0
        for k, length in enumerate(sequences):
            ids[b, start : start + length] = random.integers(5, 1000, length)
            ids[b, start], ids[b, start + length - 1] = CLS, SEP
            segments[b, start : start + length] = k + 1
            cls_positions[b, k] = start
            start += length
    rows = np.arange(len(lengths), dtype=np.int32)
    return {"input_ids": ids, "segment_ids": segments, "row_ids": rows, "cls_positions": cls_positions}


def corrupt(objective: MaskedLanguageModel, batch: dict, seed: int = 0) -> dict[str, np.ndarray]:
    return jax.tree.map(np.asarray, _corrupted(objective, batch, jax.random.key(seed)))


@functools.partial(jax.jit, static_argnums=0)
def _corrupted(objective: Objective, batch: dict, key: jax.Array) -> dict[str, jax.Array]:
    return objective.corrupt(batch, key, VOCABULARY)


def chosen(corrupted: dict[str, np.ndarray]) -> np.ndarray:
    """bool [B T]: the positions to predict."""
    rows, places = np.nonzero(corrupted["masked_weights"] > 0)  # row by row
    positions, times = corrupted["masked_positions"][rows, places], np.zeros(corrupted["input_ids"].shape, int)
    np.add.at(times, (rows, positions), 1)
    assert times.max(initial=0) <= 1, "positions are drawn without replacement"
    assert (np.diff(positions) > 0)[np.diff(rows) == 0].all()
    return times > 0


def words_of(ids: np.ndarray) -> list[list[int]]:
    """The positions of the words of a row, one list each."""
    words, last = [], -2
    for i, token in enumerate(ids):
        if token in VOCABULARY.special:
            continue
        if VOCABULARY.continuation[token] and words and last == i - 1:
            words[-1].append(i)
        else:
            words.append([i])
        last = i
    return words


def clean_batch(vocabulary: Vocabulary, pairs: str | None = None) -> dict[str, np.ndarray]:
    """Texts of different lengths, the last of which only fills the batch; `pairs` names what is asked of two texts."""
    lengths, place = np.array([18, 9, 14, 0])[:, None], np.arange(18)
    real = place < lengths
    ids = np.where(real, np.random.default_rng(0).integers(5, 52, real.shape), vocabulary.pad)
    ids[:3, 0], ids[np.arange(3), lengths[:3, 0] - 1] = vocabulary.cls, vocabulary.sep
    batch = {"input_ids": ids, "segment_ids": real, "positions": place * real, "token_type_ids": real & (place > 5)}
    batch = {name: field.astype(np.int32) for name, field in batch.items()}
    batch |= {"row_ids": np.array([0, 1, 2, -1], np.int32), "cls_positions": np.zeros((4, 1), np.int32)}
    if pairs:
        batch[f"{pairs}_labels"] = np.array([[0], [1], [1], [1]], np.int32)
        batch[f"{pairs}_weights"] = np.array([[1], [1], [1], [0]], np.float32)
    return batch


def hidden_batch(objective: Objective, batch: dict, vocabulary: Vocabulary) -> dict[str, jax.Array]:
    return jax.jit(lambda batch: objective.corrupt(batch, jax.random.key(0), vocabulary))(batch)


def total(objective: Objective, module: nn.Module, params: Any, batch: dict) -> tuple[jax.Array, dict]:
    """The loss of a batch and its metrics."""
    sums = objective.sums(module, LossInputs(params), batch, jax.random.key(0), training=False)
    weights, factors = objective.weights(batch), objective.coefficients()
    return sum(factors.get(term, 1.0) * sums.losses[term] / weights[term] for term in weights), sums.metrics
