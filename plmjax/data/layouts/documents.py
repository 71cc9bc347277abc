"""Documents cut into sequences, several of which fill a row (ModernBERT; Warner et al., arXiv 2412.13663).

A sequence starts where the previous one of its document ended, and no text is left out. Its maximum length is the
length of a row, or drawn, as in EuroBERT's last phase (Boizard et al., arXiv 2503.05500). The index has 16 bytes per
sequence, and no tokens.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, int32
from plmjax.data.layouts.sequences import SequenceRows
from plmjax.data.store import Dataset
from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges

SEQUENCE = np.dtype([("first", "<i8"), ("a_length", "<u4"), ("b_length", "<u4")])
"""A sequence: tokens first..first + a_length - 1 of the split. b_length is 0."""

SPECIAL_TOKENS = 2  # [CLS] text [SEP]
_WINDOW = 1 << 16


@dataclasses.dataclass(frozen=True)
class Documents(Layout):
    """Sequences [CLS] text [SEP] of one document each, several packed into a row, without token types.

    Adds: cls_positions int32 [B K].
    """

    shortest = 3  # [CLS] token [SEP]
    pack: int = 8
    """Maximum number of sequences packed into one row."""
    shortest_length: int = 0
    """If above 0, each sequence's length, with special tokens, is drawn uniformly from this to the length of a row."""

    def __post_init__(self) -> None:
        check_ranges("data.layout", self, pack=FROM_1, shortest_length=FROM_0)
        if 0 < self.shortest_length < self.shortest:
            raise UserError(
                f"Expected --data.layout.shortest_length of 0, or at least {self.shortest}, the tokens of [CLS] token "
                f"[SEP], found {self.shortest_length}; change it."
            )

    def check(self, sequence_length: int) -> None:
        super().check(sequence_length)
        if self.shortest_length > sequence_length:
            raise UserError(
                f"Expected --data.layout.shortest_length of at most the {sequence_length} tokens of a row, found "
                f"{self.shortest_length}; lower it."
            )

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return DocumentRows(dataset, split, self, length=length, vocabulary=vocabulary, seed=seed)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        return super().batch(batch_size, sequence_length) | {"cls_positions": int32(batch_size, self.pack)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch of rows of one sequence."""
        batch = super().synthetic(batch_size, sequence_length, vocab_size, seed)
        return batch | {"cls_positions": np.zeros((batch_size, self.pack), np.int32)}


class DocumentRows(SequenceRows):
    """Sequences of consecutive tokens of one document (see `Documents`)."""

    record = SEQUENCE

    def draw(self) -> Iterator[np.ndarray]:
        """Yield the records in the order of the text, for a window of documents at once."""
        starts = np.asarray(self._split.document_tokens)
        for begin in range(0, self._split.documents, _WINDOW):
            documents = np.arange(begin, min(begin + _WINDOW, self._split.documents))
            left, found = documents, []
            first, stop = starts[documents], starts[documents + 1]
            for number in itertools.count():
                some = first < stop
                left, first, stop = left[some], first[some], stop[some]
                if not len(left):
                    break
                after = np.minimum(first + self._capacity(left, number), stop)
                found.append((first, after - first))
                first = after
            records = np.zeros(sum(len(firsts) for firsts, _ in found), SEQUENCE)
            if found:
                records["first"], records["a_length"] = (np.concatenate(part) for part in zip(*found, strict=True))
            yield records[np.argsort(records["first"], kind="stable")]

    def texts(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        empty = np.empty(0, np.int32)
        for record in records:
            first = int(record["first"])
            yield self._split.tokens(first, first + int(record["a_length"])), empty

    def fields(self, rows: np.ndarray) -> Fields:
        return {name: field for name, field in super().fields(rows).items() if name != "token_type_ids"}

    def _capacity(self, documents: np.ndarray, number: int) -> np.ndarray:
        """Return the maximum number of text tokens in sequence `number` of each document."""
        shortest = self._layout.shortest_length or self._length
        key = order.fold_in(order.fold_in(self._seed, documents), number)
        return shortest + order.randint(key, self._length - shortest + 1) - SPECIAL_TOKENS
