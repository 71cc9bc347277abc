"""The sequences of a file as arrays of token ids, which batches are cut from."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from plmjax.contracts.template import TokenRow
from plmjax.data.unknown_tokens import UnknownTokens


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The sequences of tokens of a file, one after the other, with their labels.

    tokens, token_types: int32 [N]; types are None where the template has none. offsets: int64 [S + 1], where each
    sequence begins. summaries: int32 [S], the place within a sequence that stands for it.
    sequence_fields: field of a batch -> [S ...], numbers of a sequence. token_fields: field -> [N ...], of each token.
    decoder: what the decoder of an encoder-decoder is given, one sequence for each of these; None: there is none. In a
        batch its tokens, their segments and positions have `decoder_` before their names, its token fields have not.
    choices: how many neighbouring sequences are one example, the choices of a question or both orders of a pair;
        batches are [R choices T] where there are several.
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
        """Sequences."""
        return len(self.offsets) - 1

    def prompts(self) -> list[list[int]]:
        """The tokens of each sequence up to its summary, that one included: what a text is written after."""
        begins = self.offsets[:-1]
        ends = begins + self.summaries + 1
        return [self.tokens[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]

    def count(self, unknown: UnknownTokens) -> None:
        """Counts the tokens, those of the decoder included."""
        unknown.add(self.tokens)
        if self.decoder is not None:
            self.decoder.count(unknown)

    def arrays(self) -> Iterator[np.ndarray]:
        """Every array that its batches are made from."""
        yield self.tokens
        yield from () if self.token_types is None else (self.token_types,)
        yield from (self.offsets, *self.sequence_fields.values(), *self.token_fields.values())
        yield from () if self.decoder is None else self.decoder.arrays()


def row_arrays(rows: Sequence[TokenRow]) -> dict[str, np.ndarray]:
    """tokens, token_types, offsets and summaries of an `Encoded` with these rows."""
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


def concatenated(parts: Sequence[Encoded]) -> Encoded:
    """The sequences of several files with the same fields, one after the other."""
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
        decoder=None if parts[0].decoder is None else concatenated([part.decoder for part in parts]),
    )
