"""The count of unknown tokens: which tokens count, and the sentence about too many."""

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.unknown_tokens import UnknownTokens
from tests.data.mistakes import refused


def test_special_tokens_of_a_row_are_no_text() -> None:
    count = UnknownTokens(Vocabulary(9, pad=0, unknown=1, cls=2, sep=3, special=(0, 1, 2, 3)))
    assert count.add(np.array([2, 1, 5, 6, 3, 0, 0])) == 1
    assert count.add([7, 8]) == 0
    assert (count.count, count.total, count.fraction) == (1, 5, 0.2)
    count.check()  # just the limit
    count.add([1])
    refused(lambda: count.check("line 3 of a.txt"), "line 3 of a.txt .. 33.3% of the first 6 tokens")
    for share in (-0.1, 1.1):
        refused(lambda share=share: UnknownTokens(Vocabulary(9), share), f"--max_unknown from 0 to 1 .. {share}")


@pytest.mark.parametrize("role", ["pad", "cls", "sep", "mask", "begin", "end"])
def test_an_unknown_token_with_another_role_is_that_of_a_tokenizer_of_bytes(role: str) -> None:
    """GPT-2 names one token as its beginning, its end and its unknown token, and has it between documents."""
    count = UnknownTokens(Vocabulary(9, unknown=1, special=(1,), **{role: 1}), limit=0)
    assert count.add([1, 5, 6, 1]) == 0 and (count.count, count.total) == (0, 2)
    count.check()
