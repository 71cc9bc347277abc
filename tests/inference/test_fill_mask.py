"""Hidden words of a text."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.inference import fill_mask as filling
from plmjax.inference.fill_mask import MASK, fill_mask


def test_a_text_that_just_fits_the_positions_is_read(small_run: Path) -> None:
    """Two of the 128 positions are those of the tokens around it."""
    found = fill_mask(small_run, " ".join([MASK] * 126), top=1)
    assert len(found) == 126 and all(len(words) == 1 for words in found)
    with pytest.raises(UserError, match="Expected a text of at most 126 tokens, found 127; shorten it"):
        fill_mask(small_run, " ".join([MASK] * 127))


def test_a_row_of_the_table_without_a_token_is_never_likely(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities are of the tokens that there are, and equal ones come in their order."""
    tokenizer = tokenizers.load(small_run / "tokenizer")
    size = tokenizer.vocabulary.size
    scores = np.concatenate([np.zeros(size), np.full(8, 99.0)])
    scores[[7, 9]] = np.log([5.0, 3.0])
    monkeypatch.setattr(filling, "_logits", lambda module, params, batch: jnp.broadcast_to(scores, (1, 16, size + 8)))
    (found,) = fill_mask(small_run, f"the {MASK}", top=size)
    assert len(found) == size and sum(share for _, share in found) == pytest.approx(1)
    assert [share for _, share in found[:3]] == pytest.approx([5 / (size + 6), 3 / (size + 6), 1 / (size + 6)])
