"""Batches without a dataset: text of a first-order chain, every row a pure function of (seed, split, step)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import layouts
from plmjax.experiment import Data
from plmjax.experiment.phases import ResolvedPhase


@dataclasses.dataclass
class ChainSource:
    """A BatchSource over tokens that follow each other as i -> 3 i + noise; a model beats the unigrams soon."""

    data: Data
    size: int = 64
    seed: int = 0
    fingerprint: str = "chain"
    evaluations: int = 3

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary.placeholder(self.size)
        self.unigram_counts = np.bincount(self._tokens((9, 9), 64, 64).ravel(), minlength=self.size)

    def batch(self, phase: ResolvedPhase) -> dict[str, jax.ShapeDtypeStruct]:
        return self.data.layout.batch(phase.batch_size, phase.sequence_length)

    def train(self, phase: ResolvedPhase, start: int, places: Any = slice(None)) -> Iterator[dict[str, np.ndarray]]:
        for step in range(start, phase.steps):
            yield {name: values[places] for name, values in self.rows(phase, (0, phase.index, step)).items()}

    def evaluation(self, phase: ResolvedPhase, places: Any = slice(None)) -> Iterator[dict[str, np.ndarray]]:
        for number in range(self.evaluations):
            batch = self.rows(phase, (1, phase.index, number))
            if number == self.evaluations - 1:  # the last batch is half filling
                filling = np.arange(phase.batch_size) >= phase.batch_size // 2
                for name, values in batch.items():
                    batch[name] = np.where(filling.reshape(-1, *[1] * (values.ndim - 1)), -(name == "row_ids"), values)
                    batch[name] = batch[name].astype(values.dtype)
            yield {name: values[places] for name, values in batch.items()}

    def rows(self, phase: ResolvedPhase, place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """One batch, of the layout's fields."""
        rows, length = phase.batch_size, phase.sequence_length
        tokens = self._tokens(place, rows, length + 1)
        if isinstance(self.data.layout, layouts.ContiguousStreams):
            # The first token of a row is the one that the row before asked for.
            before = self._tokens((*place[:-1], place[-1] - 1), rows, length + 1) if place[-1] else tokens
            tokens[:, 0] = before[:, -1] if place[-1] else tokens[:, 0]
        rows_of_one = np.ones((rows, length), np.int32)
        batch = {
            "input_ids": tokens[:, :-1],
            "segment_ids": rows_of_one,
            "positions": np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)),
            "row_ids": np.arange(rows, dtype=np.int32) + rows * place[-1],
        }
        if isinstance(self.data.layout, layouts.Cooccurrences):
            exists = np.arange(length) < length - np.arange(rows)[:, None] % 4
            near = {"context_ids": tokens[:, 1:], "cooccurrences": (tokens[:, :-1] % 7 + 0.5) * exists}
            return {name: (batch | near)[name].astype(field.dtype) for name, field in self.batch(phase).items()}
        if isinstance(self.data.layout, layouts.SentencePairs | layouts.SingleSegment):
            fields = batch | self._pairs(batch, place)
            return {name: fields[name] for name in self.batch(phase)}
        if isinstance(self.data.layout, layouts.ContinuedPairs):
            return batch | self._continued_pairs(batch["input_ids"], place)
        if isinstance(self.data.layout, layouts.FullSentences):
            real = np.arange(length) < length - np.arange(rows)[:, None] % 4
            return batch | {name: np.where(real, batch[name], 0) for name in ("input_ids", "segment_ids", "positions")}
        if isinstance(self.data.layout, layouts.PairedStreams):
            return batch | self._both_sides(place, rows, length)
        batch |= {"next_ids": tokens[:, 1:], "next_weights": rows_of_one.astype(np.float32)}
        if isinstance(self.data.layout, layouts.ContiguousStreams):
            starts = np.zeros((rows, length), bool)
            starts[:, 0] = not place[-1]
            batch |= {"is_first": starts[:, 0].astype(np.int32), "document_starts": starts}
        if isinstance(self.data.layout, layouts.BidirectionalStreams):
            batch |= self._both_directions(tokens, np.arange(rows) == place[-1])
        return batch

    def _pairs(self, batch: dict[str, np.ndarray], place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Each row cut into as many sequences as the layout packs, of uneven length, the last of them padding."""
        rows, length = batch["input_ids"].shape
        pack = self.data.layout.pack
        draws = self._generator(place, 1)
        ends = np.sort(draws.integers(2, length + 1, (rows, pack)), axis=1)
        ends[: rows // 2, -1] = length
        where = np.arange(length)[None, :, None]
        segments = np.where(where[..., 0] < ends[:, -1:], np.sum(where >= ends[:, None, :], axis=-1) + 1, 0)
        begins = np.concatenate([np.zeros((rows, 1), np.int64), ends[:, :-1]], axis=1)
        positions = np.where(segments, where[..., 0] - np.take_along_axis(begins, np.maximum(segments - 1, 0), 1), 0)
        ids = np.where(segments > 0, np.where(positions == 0, 2, batch["input_ids"]), 0)
        full = (begins < ends).astype(np.float32)
        labels, name = draws.integers(0, 2, (rows, pack)), getattr(self.data.layout, "labels", "")
        fields = {
            "input_ids": ids,
            "segment_ids": segments,
            "positions": positions,
            "token_type_ids": (positions >= 4).astype(np.int32),
            "cls_positions": np.where(full > 0, begins, 0),
            f"{name}_labels": np.where(full > 0, labels, 0),
        }
        weights = {f"{name}_weights": full}
        return {field: values.astype(np.int32) for field, values in fields.items()} | weights

    def _continued_pairs(self, tokens: np.ndarray, place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """A row's first half goes on where that of the row before it ends; the rest is cut by marks at even places."""
        rows, length = tokens.shape
        half, cut = length // 2, 3 * length // 4 - 1
        if place[-1]:
            before = self._tokens((*place[:-1], place[-1] - 1), rows, length + 1)
            tokens = np.concatenate([before[:, half:-1], tokens[:, : length - half]], axis=1)
        ids, types = tokens.copy(), np.zeros((rows, length), np.int32)
        ids[:, [cut, -2, -1]] = 3, 3, 2
        types[:, cut + 1 : -1], types[:, -1] = 1, 2
        starts = np.zeros((rows, length), bool)
        starts[:, 0] = not place[-1]
        return {
            "input_ids": ids.astype(np.int32),
            "token_type_ids": types,
            "backwards": np.arange(rows) >= rows - rows // 2,
            "is_first": starts[:, 0].astype(np.int32),
            "document_starts": starts,
        }

    def _both_sides(self, place: tuple[int, ...], rows: int, length: int) -> dict[str, np.ndarray]:
        """Two pairs a row, of sources and targets of unequal lengths, then padding."""
        source, target = (self._tokens((*place, number), rows, length + 1) for number in range(2))
        where, fields = np.arange(length), {"next_ids": target[:, 1:]}
        for side, tokens, cut in (("", source, length // 2), ("decoder_", target, length // 3)):
            real, second = where < length - np.arange(rows)[:, None] % 4, where >= cut
            positions = np.where(real, where - cut * second, 0)
            begins = (positions == 0) if side else False
            fields[f"{side}input_ids"] = np.where(real, np.where(begins, 2, tokens[:, :-1]), 0)
            fields[f"{side}segment_ids"], fields[f"{side}positions"] = np.where(real, 1 + second, 0), positions
        weights = {"next_weights": real.astype(np.float32)}
        return {name: values.astype(np.int32) for name, values in fields.items()} | weights

    def _both_directions(self, tokens: np.ndarray, begun: np.ndarray) -> dict[str, np.ndarray]:
        """The fields that two-way streams add: rows from the middle of documents, but for those that have `begun`."""
        shape = len(tokens), tokens.shape[1] - 1
        starts = np.zeros(shape, bool)
        starts[:, 0] = begun
        fields = {"document_starts": starts, "is_first": begun.astype(np.int32), "backward_document_starts": starts}
        backward = {
            "input_ids": tokens[:, :0:-1],
            "next_ids": tokens[:, -2::-1],
            "segment_ids": np.ones(shape, np.int32),
        }
        backward["next_weights"] = np.ones(shape, np.float32)
        return fields | {f"backward_{name}": np.ascontiguousarray(field) for name, field in backward.items()}

    def _generator(self, place: tuple[int, ...], stream: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream, *place])

    def _tokens(self, place: tuple[int, ...], rows: int, length: int) -> np.ndarray:
        """int32 [rows length], none of them special."""
        draws = self._generator(place)
        noise = draws.integers(0, 2, (rows, length))
        tokens = np.zeros((rows, length), np.int64)
        tokens[:, 0] = draws.integers(0, self.size - 5, rows)
        for t in range(1, length):
            tokens[:, t] = (3 * tokens[:, t - 1] + noise[:, t]) % (self.size - 5)
        return (tokens + 5).astype(np.int32)


@dataclasses.dataclass
class LabelledSource(ChainSource):
    """A BatchSource of a downstream task: a label says whether the sum of a row's first half is odd."""

    def batch(self, phase: ResolvedPhase) -> dict[str, jax.ShapeDtypeStruct]:
        made = self.rows(phase, (0, 0, 0))
        return {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in made.items()}

    def rows(self, phase: ResolvedPhase, place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """One batch, of the fields of plmjax.finetuning; later rows end in more padding."""
        rows, length = phase.batch_size, phase.sequence_length
        tokens = self._tokens(place, rows, length)
        exists = np.arange(length)[None] < length - np.arange(rows)[:, None] % (length // 2)
        return {
            "input_ids": np.where(exists, tokens, 0).astype(np.int32),
            "segment_ids": exists.astype(np.int32),
            "positions": (exists * np.arange(length)).astype(np.int32),
            "token_type_ids": (exists & (np.arange(length) >= length // 4)).astype(np.int32),
            "row_ids": np.arange(rows, dtype=np.int32) + rows * place[-1],
            "cls_positions": np.zeros((rows, 1), np.int32),
            "example_ids": np.arange(rows, dtype=np.int32)[:, None] + rows * place[-1],
            "labels": (tokens[:, : length // 2].sum(axis=1, keepdims=True) % 2).astype(np.int32),
        }


@dataclasses.dataclass
class TaggedSource(LabelledSource):
    """A BatchSource of tagging: a sentence a row, and of every word its spelling and whether 4 divides it."""

    def rows(self, phase: ResolvedPhase, place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """One batch, of the fields of plmjax.finetuning.tasks.crf_tagging."""
        fields = super().rows(phase, place)
        tokens, exists = fields["input_ids"], fields["segment_ids"] > 0
        characters = (tokens[..., None] + np.arange(5)) * exists[..., None]
        del fields["token_type_ids"]
        return fields | {
            "characters": characters.astype(np.uint16),
            "labels": (tokens % 4 == 0).astype(np.int32),
            "label_weights": exists.astype(np.float32),
            "first_words": exists & (fields["positions"] == 0),
            "last_words": exists & ~np.pad(exists[:, 1:], ((0, 0), (0, 1))),
        }


@dataclasses.dataclass
class UntypedSource(LabelledSource):
    """The same for a model whose template has no types."""

    def rows(self, phase: ResolvedPhase, place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """As the base, without types of tokens."""
        return {name: values for name, values in super().rows(phase, place).items() if name != "token_type_ids"}


class CrossViewSource(TaggedSource):
    """Batches of words with labels and of words without, in turn."""

    def rows(self, phase: ResolvedPhase, place: tuple[int, ...]) -> dict[str, np.ndarray]:
        """One batch, of the fields of plmjax.finetuning.cross_view.cross_view."""
        fields = super().rows(phase, place)
        own = ("labels", "label_weights", "first_words", "last_words")
        words, unlabelled = fields["label_weights"], np.float32(place[-1] % 2)
        targets = np.zeros((len(words), 4), np.int32)
        return {name: array for name, array in fields.items() if name not in own} | {
            "tags/labels": fields["labels"],
            "tags/label_weights": words * (1 - unlabelled),
            "trees/heads": fields["positions"].astype(np.int32),
            "trees/relations": fields["labels"] % 2,
            "trees/label_weights": np.zeros_like(words),
            "decoder_input_ids": targets,
            "decoder_segment_ids": targets,
            "texts/next_ids": targets,
            "texts/next_weights": targets.astype(np.float32),
            "view_weights": words * unlabelled,
        }
