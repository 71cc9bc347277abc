"""The documents of a split as one text, with a token after each of them."""

import numpy as np

from plmjax.data.store import Split


class JoinedText:
    """Tokens 0..size-1: every document and after it the token `between`, the last one included.

    starts: int64 [documents + 1], where every document begins, and the size.
    """

    def __init__(self, split: Split, between: int):
        self.starts = split.document_tokens + np.arange(split.documents + 1)
        self.size = int(self.starts[-1])
        self._split = split
        self._between = between

    def starts_within(self, start: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Where documents begin among tokens start[b]..start[b]+length: the rows b and the places in them, int64."""
        documents = self.starts[:-1]
        first, last = np.searchsorted(documents, start), np.searchsorted(documents, start + length)
        counts = last - first
        row = np.repeat(np.arange(len(start)), counts)
        document = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + first[row]
        return row, documents[document] - start[row]

    def copy(self, start: np.ndarray, stop: np.ndarray, out: np.ndarray) -> None:
        """Writes tokens start[b]..stop[b] to the beginning of out[b], for every row b."""
        first = np.searchsorted(self.starts, start, "right") - 1
        last = np.searchsorted(self.starts, stop - 1, "right") - 1
        places = zip(start.tolist(), stop.tolist(), first.tolist(), last.tolist(), strict=True)
        for row, (begin, end, document, final) in zip(out, places, strict=True):
            ends = self.starts[document + 1 : final + 2] - 1 - begin  # where the tokens between stand
            ends = ends[ends < end - begin]
            tokens = self._split.tokens(begin - document, end - document - len(ends))
            if len(ends):
                is_token = np.ones(end - begin, bool)
                is_token[ends] = False
                row[ends] = self._between
                row[: end - begin][is_token] = tokens
            else:
                row[: end - begin] = tokens
