"""Words as rows of characters: the UTF-8 bytes between two marks (allenai/bilm-tf bilm/data.py).

    cat  ->  <W> c a t </W> <pad> <pad> ...        <S>  ->  <W> <S> </W> <pad> <pad> ...

Every word has characters, also a word outside the vocabulary. Ids are one higher than the bytes. The id 0 is for the
characters of padding tokens, which are no words.
"""

from collections.abc import Sequence

import numpy as np

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
CHARACTERS = 261
"""Number of characters: 256 bytes and 5 marks; their ids are 1..261."""


def spell(words: Sequence[str], length: int) -> np.ndarray:
    """Return the characters of every word, int32 [words length]. A word of more than length - 2 bytes is truncated."""
    rows = np.full((len(words), length), PADDING, np.int32)
    for row, word in zip(rows, words, strict=True):
        _fill(row, list(word.encode("utf-8", "ignore")[: length - 2]))
    return rows + 1


def sentence_marks(length: int) -> np.ndarray:
    """Return the characters of the begin mark and the end mark of a sentence, int32 [2 length]."""
    rows = np.full((2, length), PADDING, np.int32)
    _fill(rows[0], [BEGIN_SENTENCE])
    _fill(rows[1], [END_SENTENCE])
    return rows + 1


def _fill(row: np.ndarray, characters: list[int]) -> None:
    marked = [BEGIN_WORD, *characters, END_WORD]
    row[: len(marked)] = marked
