"""Shared by the tests of masking: rows of packed sequences, and which of their tokens an objective chose."""

import dataclasses

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.masked_language_model import MaskedLanguageModel

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
    corrupted = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY))(batch, jax.random.key(seed))
    return jax.tree.map(np.asarray, corrupted)


def chosen(corrupted: dict[str, np.ndarray]) -> np.ndarray:
    """bool [B T]: the positions to predict."""
    mask = np.zeros(corrupted["input_ids"].shape, bool)
    for b, (positions, weights) in enumerate(
        zip(corrupted["masked_positions"], corrupted["masked_weights"], strict=True)
    ):
        kept = positions[weights > 0]
        assert len(set(kept)) == len(kept), "positions are drawn without replacement"
        assert (np.diff(kept) > 0).all()
        mask[b, kept] = True
    return mask


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
