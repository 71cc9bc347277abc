"""The data that the constants of a run are made from."""

import numpy as np

from plmjax.training import constants
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.vocabulary import Vocabulary
from tests.strangers import experiments


def test_tokens_that_the_text_lacks_are_counted_as_none() -> None:
    """A model may have more tokens than the text, and a task counts none."""
    vocabulary, description = Vocabulary.placeholder(5), Description(experiments.gpt2(), 0, {})
    for counts, expected in ((np.array([7, 0, 3]), [7, 0, 3, 0, 0]), (None, [0] * 5)):
        found = constants.of_run(vocabulary, counts, description).token_counts
        assert found.tolist() == expected and found.dtype == np.int64
