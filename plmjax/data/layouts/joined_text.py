"""The documents of a split as one text, with a separator token after each, if the tokenizer has one."""

import numpy as np

from plmjax.data.store import Split


class JoinedText:
    """Tokens 0..size-1: every document, followed by the token `between`, also after the last one.

    A negative `between` means no separator; the text must then be one document.

    starts: int64 [documents + 1], the start of every document, and the size. separated: 1 if there is a separator.
    """

    def __init__(self, split: Split, between: int):
        self.separated = int(between >= 0)
        self.starts = split.document_tokens + self.separated * np.arange(split.documents + 1)
        self.size = int(self.starts[-1])
        self._split = split
        self._between = between

    def starts_within(self, start: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the document starts among tokens start[b]..start[b]+length-1, in the form of `places_within`."""
        return places_within(self.starts[:-1], start, length)

    def copy(self, start: np.ndarray, stop: np.ndarray, out: np.ndarray) -> None:
        """Write tokens start[b]..stop[b]-1 to the beginning of out[b], for every row b."""
        first = np.searchsorted(self.starts, start, "right") - 1
        last = np.searchsorted(self.starts, stop - 1, "right") - 1
        places = zip(start.tolist(), stop.tolist(), first.tolist(), last.tolist(), strict=True)
        for row, (begin, end, document, final) in zip(out, places, strict=True):
            if not self.separated:
                row[: end - begin] = self._split.tokens(begin, end)
                continue
            ends = self.starts[document + 1 : final + 2] - 1 - begin  # positions of the separators
            ends = ends[ends < end - begin]
            tokens = self._split.tokens(begin - document, end - document - len(ends))
            if len(ends):
                is_token = np.ones(end - begin, bool)
                is_token[ends] = False
                row[ends] = self._between
                row[: end - begin][is_token] = tokens
            else:
                row[: end - begin] = tokens


class ReversedText:
    """A joined text in reverse order. The separator comes before each document."""

    def __init__(self, text: JoinedText):
        self.size = text.size
        self._text = text
        self._starts = text.size + text.separated - text.starts[:0:-1]

    def starts_within(self, start: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the last tokens of documents, in the form of `JoinedText.starts_within`."""
        return places_within(self._starts, start, length)

    def copy(self, start: np.ndarray, stop: np.ndarray, out: np.ndarray) -> None:
        """Write tokens start[b]..stop[b]-1 to the beginning of out[b], for every row b."""
        self._text.copy(self.size - stop, self.size - start, out)
        for row, length in zip(out, (stop - start).tolist(), strict=True):
            row[:length] = row[:length][::-1].copy()


def places_within(places: np.ndarray, start: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending `places` that are among start[b]..start[b]+length-1, for every row b.

    Returns:
        The rows b and the offsets within them, int64.
    """
    first, last = np.searchsorted(places, start), np.searchsorted(places, start + length)
    counts = last - first
    row = np.repeat(np.arange(len(start)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + first[row]
    return row, places[number] - start[row]
