"""Replacement of text spans by sentinels, counted down from the first: the form of T5's sources and targets."""

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.text_to_text.text_to_text import Stream, append_end_token


def check_sentinels(spans: int, vocabulary: Vocabulary) -> None:
    """Check that the tokenizer has a sentinel for each of `spans` spans. Raises UserError otherwise."""
    if len(vocabulary.sentinels) < spans:
        raise UserError(
            f"Expected a tokenizer with at least {spans} sentinels for rows of this length, found "
            f"{len(vocabulary.sentinels)}; use one with more of them, or lower --data.sequence_length."
        )


def replace_spans(ids: jax.Array, hidden: jax.Array, real: jax.Array, vocabulary: Vocabulary) -> Stream:
    """Replace each hidden span by a different sentinel and append the end token.

    ids int [N]; hidden and real bool [N]. As in `noise_span_to_unique_sentinel`: if a text has more spans than there
    are sentinels, the ids below the last sentinel serve as further ones.
    """
    hidden = hidden & real
    begins = hidden & ~jnp.concatenate([jnp.zeros(1, bool), hidden[:-1]])
    ids = jnp.where(begins, vocabulary.sentinels[0] + 1 - jnp.cumsum(begins), ids)
    return append_end_token(ids, real & (begins | ~hidden), vocabulary)
