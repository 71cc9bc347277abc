"""The examples of a task as batches of packed rows for the training loop.

Short examples share a row, and each example attends only to itself. So there is little padding, and all batches have
one shape. Every epoch packs the examples in another random order. All epochs have the same number of rows, so the
epoch of a step is found by division.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, packing
from plmjax.data.mixing import Portion
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.group_sampler import GroupSampler
from plmjax.finetuning.batches.mixing import Mixing

Batch = dict[str, np.ndarray]


class ExampleRows:
    """The examples of one file, packed into rows of `length` tokens.

    If a decoder has separate rows, these have `decoder_length` tokens.

    mixing: sampling of the examples of an epoch; with None an epoch has every example once.
    padding: side of a row that is padded, as in `Template`.
    """

    def __init__(
        self,
        encoded: Encoded,
        length: int,
        max_sequences: int,
        *,
        pad: int,
        decoder_length: int = 0,
        mixing: Mixing | None = None,
        padding: str = "right",
    ) -> None:
        self.encoded = encoded
        self._length, self._max_sequences, self._pad, self._decoder_length = length, max_sequences, pad, decoder_length
        self._padding = padding
        # The choices of one example are stored side by side, so the longest of them counts.
        self._example_lengths = _lengths(encoded).reshape(-1, encoded.choices).max(axis=1)
        if encoded.decoder is not None:
            # Both sides must fit: the larger fraction of its row counts, rounded up to whole tokens.
            scaled = -(-_lengths(encoded.decoder) * length // decoder_length)
            self._example_lengths = np.maximum(self._example_lengths, scaled)
        self.in_order = packing.pack_table(self._example_lengths, length, max_sequences)
        self.mixing = mixing
        self.per_epoch = len(self.in_order)
        if mixing is not None:  # Epochs differ in their lengths. The estimate is from a sample that depends on no seed.
            drawn = self._example_lengths[mixing.sample_epoch(0, order.fold_in(0, 0))]
            self.per_epoch = len(packing.pack_table(drawn, length, max_sequences))

    def __len__(self) -> int:
        """Return the number of rows that hold every example once."""
        return len(self.in_order)

    @property
    def examples(self) -> int:
        """Return the number of examples of the file."""
        return len(self._example_lengths)

    def shuffle(self, epoch: int, key: np.ndarray) -> np.ndarray:
        """Return the examples in each row of an epoch, int [per_epoch max_sequences]; -1 where a row holds fewer.

        The examples are shuffled, then packed, then the rows are shuffled. If the samples of an epoch fill more rows
        than `per_epoch`, the last rows are left out; if they fill fewer, the first rows occur twice.

        key: key of the orders of all epochs.
        """
        examples = np.arange(self.examples) if self.mixing is None else self.mixing.sample_epoch(epoch, key)
        key = order.fold_in(key, epoch)
        examples = examples[order.permute(np.arange(len(examples)), len(examples), order.fold_in(key, 0))]
        table = packing.pack_table(self._example_lengths[examples], self._length, self._max_sequences)
        table = np.where(table >= 0, examples[table], -1)
        table = table[order.permute(np.arange(len(table)), len(table), order.fold_in(key, 1))]
        return np.resize(table, (self.per_epoch, self._max_sequences))

    def shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return a dict from field to shape and dtype of a batch of this number of rows."""
        empty = self.batch(np.full((1, self._max_sequences), -1), np.array([-1]))
        return {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), jnp.dtype(array.dtype))
            for name, array in empty.items()
        }

    def batch(self, table: np.ndarray, row_ids: np.ndarray) -> Batch:
        """Return the batch of the rows in `table`, int [R max_sequences]: examples, and -1 where a row holds fewer."""
        encoded, choices = self.encoded, self.encoded.choices
        sequences = np.where(table >= 0, table * choices, -1)[:, None] + np.arange(choices)[:, None]  # [R C K]
        sequences = np.where(table[:, None] >= 0, sequences, -1).reshape(-1, self._max_sequences)  # [R C, K]
        begins, fields = self._token_arrays(encoded, sequences, self._length)
        if encoded.decoder is not None:
            _, theirs = self._token_arrays(encoded.decoder, sequences, self._decoder_length)
            shared = encoded.decoder.token_fields
            fields |= {name if name in shared else f"decoder_{name}": array for name, array in theirs.items()}
        fields["sequence_starts"] = np.where(sequences >= 0, begins, 0).astype(np.int32)
        summaries = begins + encoded.summaries[sequences]
        fields["cls_positions"] = np.where(sequences >= 0, summaries, 0).astype(np.int32)
        fields["example_ids"] = sequences.astype(np.int32)
        for name, values in encoded.sequence_fields.items():
            there = np.expand_dims(sequences >= 0, tuple(range(2, 1 + values.ndim)))
            fields[name] = np.where(there, values[sequences], 0).astype(values.dtype)
        if choices > 1:
            fields = {name: array.reshape(-1, choices, *array.shape[1:]) for name, array in fields.items()}
        return fields | {"row_ids": row_ids.astype(np.int32)}

    def _token_arrays(self, encoded: Encoded, sequences: np.ndarray, length: int) -> tuple[np.ndarray, Batch]:
        """Return (start of each of `sequences` [B K] in its row, [B K]; token fields, [B length])."""
        lengths = np.where(sequences >= 0, _lengths(encoded)[sequences], 0)
        begins, segment_ids, positions = packing.place(lengths, length, self._padding)
        row, slot = np.nonzero(lengths)
        starts, stops = (encoded.offsets[sequences[row, slot] + end].tolist() for end in (0, 1))

        def placed(values: np.ndarray, padding: int) -> np.ndarray:
            out = np.full((len(sequences), length, *values.shape[1:]), padding, values.dtype)
            pieces = (values[start:stop] for start, stop in zip(starts, stops, strict=True))
            packing.copy(row, begins[row, slot], pieces, out)
            return out

        fields = {"segment_ids": segment_ids, "positions": positions, "input_ids": placed(encoded.tokens, self._pad)}
        if encoded.token_types is not None:
            fields["token_type_ids"] = placed(encoded.token_types, 0)
        return begins, fields | {name: placed(values, 0) for name, values in encoded.token_fields.items()}


def _lengths(encoded: Encoded) -> np.ndarray:
    """Return the number of tokens of every sequence."""
    return np.diff(encoded.offsets)


class TaskSource:
    """Batches of a task for the training loop (`plmjax.training.feed.BatchSource`).

    Training runs through epochs of the train rows, each in another order that follows from the seed. With several
    groups, every step takes one group (plmjax/finetuning/batches/group_sampler.py), and each group has its own epochs.
    With unlabelled rows, every second step takes unlabelled rows.
    """

    unigram_counts = None

    def __init__(
        self,
        train: Sequence[ExampleRows],
        validation: ExampleRows,
        vocabulary: Vocabulary,
        *,
        seed: int,
        unlabelled: ExampleRows | None = None,
    ) -> None:
        self.vocabulary, self.validation_rows = vocabulary, validation
        self._train, self._unlabelled = tuple(train), unlabelled
        self._labelled_group = GroupSampler(tuple(rows.examples for rows in train), order.fold_in(seed, 5))
        self._groups = self._train if unlabelled is None else (*train, unlabelled)
        keys = [
            order.fold_in(order.fold_in(seed, 3), group) if group else order.fold_in(seed, 3)
            for group in range(len(train))
        ]
        keys.append(order.fold_in(seed, 4))
        self._epoch = functools.lru_cache(2 * len(self._groups))(
            lambda group, epoch: self._groups[group].shuffle(epoch, keys[group])
        )
        digest = hashlib.sha256()
        for rows in (*self._groups, validation):
            for array in rows.encoded.arrays():
                digest.update(np.ascontiguousarray(array).tobytes())
        self.fingerprint = digest.hexdigest()

    @property
    def per_epoch(self) -> int:
        """Return the number of rows, unlabelled ones included, of the steps that read the train examples once."""
        return (1 + (self._unlabelled is not None)) * sum(rows.per_epoch for rows in self._train)

    @property
    def examples_per_row(self) -> float:
        """Return the mean number of train examples that are packed into a row."""
        return sum(rows.examples for rows in self._train) / sum(map(len, self._train))

    def batch(self, phase: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Return a dict from field to shape and dtype of the phase's global batch."""
        rows = self.validation_rows if phase.held_out else self._train[0]
        return rows.shapes(phase.batch_size)

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> Iterator[Batch]:
        """Yield the phase's batches start, start + 1, ..., or only the rows `places` of each."""
        places = np.arange(phase.batch_size) if places is None else places
        for step in itertools.count(phase.first_step + start):
            group, number = self._group(step)
            rows = self._groups[group]
            epochs, within = np.divmod(number * phase.batch_size + places, rows.per_epoch)
            drawn = zip(epochs.tolist(), within, strict=True)
            yield rows.batch(np.stack([self._epoch(group, epoch)[row] for epoch, row in drawn]), within)

    def portions(self, phases: Sequence[Any], step: int) -> dict[str, Portion]:
        """Return the rate of each task of a mixture, and its passes in `step` steps; empty without a mixture.

        Each row counts as a row with the mean number of examples.
        """
        (rows, *others), (phase, *_) = self._groups, phases
        if rows.mixing is None or others:
            return {}
        return rows.mixing.portions(step * phase.batch_size / rows.per_epoch)

    def _group(self, step: int) -> tuple[int, int]:
        """Return (number of the group that a step takes, number of earlier steps that took this group)."""
        if self._unlabelled is None:
            return self._labelled_group(step)
        number, second = divmod(step, 2)
        return (len(self._train), number) if second else self._labelled_group(number)

    def evaluation(self, phase: Any, places: np.ndarray | None = None) -> Iterator[Batch]:
        """Yield the batches of the validation file in order, or only the rows `places` of each.

        The last batch is padded.
        """
        places = np.arange(phase.batch_size) if places is None else places
        table = self.validation_rows.in_order
        empty = np.full((1, table.shape[1]), -1)
        for first in range(0, len(table), phase.batch_size):
            rows = first + places
            rows = np.where(rows < len(table), rows, -1)
            yield self.validation_rows.batch(np.concatenate([table, empty])[rows], rows)
