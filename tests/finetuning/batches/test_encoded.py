"""Encoded sequences: the prompt of each one."""

import numpy as np

from plmjax.finetuning.batches.encoded import Encoded


def test_a_prompt_ends_with_the_summary_of_its_own_sequence() -> None:
    found = Encoded(np.arange(10), None, np.array([0, 4, 9, 10]), np.array([2, 4, 0]), {})
    assert found.prompts() == [[0, 1, 2], [4, 5, 6, 7, 8], [9]]
