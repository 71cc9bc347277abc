"""The documents of a split as one text, with a token behind each of them."""

import numpy as np

from plmjax.data.store import Split


class JoinedText:
    """Tokens 0..size-1: every document and behind it the token `between`, the last one included.

    starts: int64 [documents + 1], where every document begins, and the size.
    """

    def __init__(self, split: Split, between: int):
        self.starts = split.document_tokens + np.arange(split.documents + 1)
        self.size = int(self.starts[-1])
        self._split = split
        self._between = between

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
