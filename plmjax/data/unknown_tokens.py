"""Tokens of a text that stand for what the tokenizer lacks: how many there are, and how many are too many.

A model learns and predicts the unknown token as any other. Text that the tokenizer hardly knows therefore looks easy to
it: Chinese through an English tokenizer of words is one token again and again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plmjax.errors import UserError

if TYPE_CHECKING:  # a command has the default before it imports NumPy
    import numpy as np

    from plmjax.vocabulary import Vocabulary

MAX_UNKNOWN = 0.2
"""Largest share of unknown tokens, by default."""


class UnknownTokens:
    """Counts the unknown tokens of a text, and refuses a text that has too many.

    count: the unknown tokens so far. total: all tokens so far, without special ones.
    """

    def __init__(self, vocabulary: "Vocabulary", limit: float = MAX_UNKNOWN) -> None:
        """The count of no token yet.

        Args:
            vocabulary: Of the tokenizer. Where its unknown token has another role too, the tokenizer reads every byte:
                no token of a text is unknown, and that token ends a document.
            limit: Largest share of unknown tokens.

        Raises:
            UserError: a limit that is no share.
        """
        if not 0 <= limit <= 1:
            raise UserError(f"Expected --max_unknown from 0 to 1, found {limit}; try {MAX_UNKNOWN}.")
        self.count = self.total = 0
        self._limit = limit
        others = [getattr(vocabulary, role) for role in ("pad", "cls", "sep", "mask", "begin", "end")]
        self._unknown = -1 if vocabulary.unknown in others else vocabulary.unknown
        self._left_out = [index for index in vocabulary.special if index != self._unknown]

    @property
    def share(self) -> float:
        """The share of unknown tokens; 0 of no token."""
        return self.count / max(self.total, 1)

    def __str__(self) -> str:
        """The count in words."""
        return f"unknown    {self.share:.2%} of the tokens, {self.count:,} of {self.total:,}"

    def add(self, ids: "np.ndarray | Sequence[int]") -> int:
        """Counts the tokens of a text or of rows, int [N]; returns how many of them are unknown."""
        import numpy as np

        ids = np.asarray(ids)
        found = int(np.count_nonzero(ids == self._unknown)) if self._unknown >= 0 else 0
        self.count += found
        self.total += ids.size - int(np.count_nonzero(np.isin(ids, self._left_out)))
        return found

    def check(self, where: str = "") -> None:
        """Raises UserError where more tokens are unknown than the limit allows.

        where: place of the text, such as "line 3 of prompts.txt".
        """
        if self.count > self._limit * self.total:
            place = f" in {where}" if where else ""
            raise UserError(
                f"Expected text that the tokenizer knows{place}, found {self.share:.1%} of the first {self.total:,} "
                f"tokens unknown, more than --max_unknown ({self._limit:g}); use a tokenizer or a checkpoint that was "
                f"trained on such text, or raise --max_unknown to go on with it."
            )
