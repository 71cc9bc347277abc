"""Counts the unknown tokens of a text, and refuses a text with too many of them.

A model learns and predicts the unknown token like any other. So a text with many unknown tokens seems easy to the
model: with an English word tokenizer, a Chinese text is one token repeated.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plmjax.errors import UserError

if TYPE_CHECKING:  # a command reads the default before it imports NumPy
    import numpy as np

    from plmjax.contracts.vocabulary import Vocabulary

MAX_UNKNOWN = 0.2
"""Default maximum fraction of unknown tokens."""


class UnknownTokens:
    """Counts the unknown tokens of a text, and refuses a text that has too many.

    count: number of unknown tokens so far. total: number of all tokens so far, without special tokens.
    """

    def __init__(self, vocabulary: "Vocabulary", limit: float = MAX_UNKNOWN) -> None:
        """Start counting at zero.

        Args:
            vocabulary: vocabulary of the tokenizer. If its unknown token has another role too, the tokenizer reads
                every byte: no token of a text is unknown, and that token ends a document.
            limit: maximum fraction of unknown tokens.

        Raises:
            UserError: the limit is not a fraction.
        """
        if not 0 <= limit <= 1:
            raise UserError(f"Expected --max_unknown from 0 to 1, found {limit}; try {MAX_UNKNOWN}.")
        self.count = self.total = 0
        self._limit = limit
        others = [getattr(vocabulary, role) for role in ("pad", "cls", "sep", "mask", "begin", "end")]
        self._unknown = -1 if vocabulary.unknown in others else vocabulary.unknown
        self._left_out = [index for index in vocabulary.special if index != self._unknown]

    @property
    def fraction(self) -> float:
        """Fraction of unknown tokens; 0 if there are no tokens."""
        return self.count / max(self.total, 1)

    def __str__(self) -> str:
        """Return the count as a line of text."""
        return f"unknown    {self.fraction:.2%} of the tokens, {self.count:,} of {self.total:,}"

    def add(self, ids: "np.ndarray | Sequence[int]") -> int:
        """Count the tokens of a text or of rows, int [N]. Return the number of unknown ones."""
        import numpy as np

        ids = np.asarray(ids)
        found = int(np.count_nonzero(ids == self._unknown)) if self._unknown >= 0 else 0
        self.count += found
        self.total += ids.size - int(np.count_nonzero(np.isin(ids, self._left_out)))
        return found

    def check(self, where: str = "") -> None:
        """Raise UserError if more tokens are unknown than the limit allows.

        where: location of the text, such as "line 3 of prompts.txt".
        """
        if self.count > self._limit * self.total:
            place = f" in {where}" if where else ""
            raise UserError(
                f"Expected text that the tokenizer knows{place}, found {self.fraction:.1%} of the first {self.total:,} "
                f"tokens unknown, more than --max_unknown ({self._limit:g}); use a tokenizer or a checkpoint that was "
                f"trained on such text, or raise --max_unknown to use it anyway."
            )
