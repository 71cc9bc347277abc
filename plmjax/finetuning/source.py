"""The rows of a task as batches for the training loop: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.data import order
from plmjax.errors import UserError
from plmjax.finetuning.objectives import SentenceObjective
from plmjax.finetuning.tasks import Examples
from plmjax.vocabulary import Vocabulary

Batch = dict[str, np.ndarray]


def room(first: int, second: int, tokens: int) -> tuple[int, int]:
    """Lengths of two texts cut to `tokens` together, the longer one first, the second where they are equal.

    As google-research/bert run_classifier.py takes them away, one at a time.
    """
    kept = min(first, max(tokens - second, tokens - tokens // 2))
    return kept, min(second, tokens - kept)


def join(texts: list[list[int]], length: int, vocabulary: Vocabulary) -> tuple[list[int], int]:
    """([CLS] A [SEP] with B [SEP] where there are two texts, where B begins) of at most `length` tokens."""
    if len(texts) == 1:
        row = [vocabulary.cls, *texts[0][: length - 2], vocabulary.sep]
        return row, len(row)
    first, second = texts
    kept, kept_second = room(len(first), len(second), length - 3)
    row = [vocabulary.cls, *first[:kept], vocabulary.sep]
    return [*row, *second[:kept_second], vocabulary.sep], len(row)


def check_vocabulary(vocabulary: Vocabulary, length: int) -> None:
    """Raises UserError where no row of at most `length` tokens can be built."""
    if vocabulary.cls < 0 or vocabulary.sep < 0:
        raise UserError(
            "Expected a tokenizer with tokens that begin and end a text ([CLS] and [SEP]), found none; use the one of "
            "a BERT."
        )
    if length < 5:
        raise UserError(f"Expected --data.sequence_length of at least 5, found {length}; raise it.")


class Rows:
    """The examples of one file as numbers, none of them padded."""

    def __init__(self, examples: Examples, tokenizer: Any, objective: SentenceObjective, length: int) -> None:
        """Encodes the texts for rows of at most `length` tokens; `tokenizer` is a plmjax.data.tokenizers.Tokenizer."""
        check_vocabulary(tokenizer.vocabulary, length)
        sides = [tokenizer.encode_batch(list(side)) for side in zip(*examples.texts, strict=True)]
        joined = [join(list(texts), length, tokenizer.vocabulary) for texts in zip(*sides, strict=True)]
        self.labels = objective.encode(examples)
        self.seconds = [second for _, second in joined]
        self.tokens = np.concatenate([np.asarray(row, np.int32) for row, _ in joined])
        self.offsets = np.cumsum([0, *(len(row) for row, _ in joined)])

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: np.ndarray, length: int, pad: int) -> Batch:
        """The rows `rows` as arrays of width `length`; -1 gives an empty row."""
        shape = (len(rows), length)
        batch = {
            "input_ids": np.full(shape, pad, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
            "token_type_ids": np.zeros(shape, np.int32),
            "row_ids": rows.astype(np.int32),
            "labels": np.where(rows >= 0, self.labels[rows], 0).astype(self.labels.dtype),
        }
        for place, row in enumerate(rows):
            if row < 0:
                continue
            tokens = self.tokens[self.offsets[row] : self.offsets[row + 1]]
            batch["input_ids"][place, : len(tokens)] = tokens
            batch["segment_ids"][place, : len(tokens)] = 1
            batch["token_type_ids"][place, self.seconds[row] : len(tokens)] = 1
        return batch


class TaskSource:
    """Two files of a task as the training loop reads them (`plmjax.training.loop.Source`).

    Training goes through the train file again and again, each time in another order that follows from the seed.
    """

    unigram_counts = None

    def __init__(self, train: Rows, validation: Rows, vocabulary: Vocabulary, seed: int) -> None:
        self.vocabulary = vocabulary
        self.train_rows, self.validation_rows = train, validation
        self._key = order.fold(seed, 3)
        self._pad = max(vocabulary.pad, 0)
        digest = hashlib.sha256()
        for rows in (train, validation):
            for array in (rows.tokens, rows.offsets, np.asarray(rows.seconds), rows.labels):
                digest.update(np.ascontiguousarray(array).tobytes())
        self.fingerprint = digest.hexdigest()

    def batch(self, phase: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Field -> shape and dtype of the phase's global batch."""
        shape = (phase.batch_size, phase.sequence_length)
        tokens, row = jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape[:1], jnp.int32)
        fields = {name: tokens for name in ("input_ids", "segment_ids", "token_type_ids")}
        labels = jax.ShapeDtypeStruct(shape[:1], self.validation_rows.labels.dtype)
        return fields | {"row_ids": row, "labels": labels}

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> Iterator[Batch]:
        """The batches start, start + 1, ... of the phase, or of each just the rows `places`."""
        places = np.arange(phase.batch_size) if places is None else places
        first = phase.first_step + start
        while True:
            numbers = first * phase.batch_size + places
            rows = order.shuffled(numbers, len(self.train_rows), self._key)
            yield self.train_rows.batch(rows, phase.sequence_length, self._pad)
            first += 1

    def evaluation(self, phase: Any, places: np.ndarray | None = None) -> Iterator[Batch]:
        """The validation file's batches in order, or of each just the rows `places`; the last is filled up."""
        places = np.arange(phase.batch_size) if places is None else places
        count = len(self.validation_rows)
        for first in range(0, count, phase.batch_size):
            rows = first + places
            yield self.validation_rows.batch(np.where(rows < count, rows, -1), phase.sequence_length, self._pad)
