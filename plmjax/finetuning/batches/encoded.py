"""The sequences of a file as arrays of token ids, from which batches are built."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from plmjax.contracts.template import TokenRow
from plmjax.data.unknown_tokens import UnknownTokens


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The token sequences of a file, one after the other, with their labels.

    tokens, token_types: int32 [N]; token_types is None where the template has no types.
    offsets: int64 [S + 1], the first token of each sequence.
    summaries: int32 [S], the position within a sequence whose hidden state represents it.
    sequence_fields: field of a batch -> [S ...], the values of each sequence.
    token_fields: field -> [N ...], the values of each token.
    decoder: the decoder's input for each sequence, or None without a decoder. In a batch, the names of its tokens,
        segments and positions start with `decoder_`; the names of its token fields do not.
    choices: number of neighbouring sequences that form one example, such as the choices of a question or both orders of
        a pair. Batches are [R choices T] if it is above 1.
    """

    tokens: np.ndarray
    token_types: np.ndarray | None
    offsets: np.ndarray
    summaries: np.ndarray
    sequence_fields: dict[str, np.ndarray]
    token_fields: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    decoder: "Encoded | None" = None
    choices: int = 1

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.offsets) - 1

    def prompts(self) -> list[list[int]]:
        """Return the prompts of generated texts: the tokens of each sequence up to and including its summary."""
        begins = self.offsets[:-1]
        ends = begins + self.summaries + 1
        return [self.tokens[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]

    def count(self, unknown: UnknownTokens) -> None:
        """Count the unknown tokens, including those of the decoder."""
        unknown.add(self.tokens)
        if self.decoder is not None:
            self.decoder.count(unknown)

    def arrays(self) -> Iterator[np.ndarray]:
        """Iterate over all arrays from which batches are built."""
        yield self.tokens
        yield from () if self.token_types is None else (self.token_types,)
        yield from (self.offsets, *self.sequence_fields.values(), *self.token_fields.values())
        yield from () if self.decoder is None else self.decoder.arrays()


def row_arrays(rows: Sequence[TokenRow]) -> dict[str, np.ndarray]:
    """Return tokens, token_types, offsets and summaries of an `Encoded` with these rows."""
    lengths = [len(row.tokens) for row in rows]

    def one_array(numbers: Iterable[list[int]]) -> np.ndarray:
        return np.fromiter(itertools.chain.from_iterable(numbers), np.int32, sum(lengths))

    typed = all(row.token_types is not None for row in rows)
    return {
        "tokens": one_array(row.tokens for row in rows),
        "token_types": one_array(row.token_types for row in rows) if typed else None,
        "offsets": np.cumsum([0, *lengths]),
        "summaries": np.array([row.summary for row in rows], np.int32),
    }


def concatenate(parts: Sequence[Encoded]) -> Encoded:
    """Concatenate the sequences of several files with the same token fields, no types and no sequence fields."""
    ends = np.cumsum([part.offsets[-1] for part in parts])
    offsets = [part.offsets[1:] + end - part.offsets[-1] for part, end in zip(parts, ends, strict=True)]
    return dataclasses.replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        offsets=np.concatenate([[0], *offsets]),
        summaries=np.concatenate([part.summaries for part in parts]),
        token_fields={
            name: np.concatenate([part.token_fields[name] for part in parts]) for name in parts[0].token_fields
        },
        decoder=None if parts[0].decoder is None else concatenate([part.decoder for part in parts]),
    )
