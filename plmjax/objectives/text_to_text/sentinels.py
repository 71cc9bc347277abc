"""Spans of a text that are replaced by sentinels, counted down from the first: the form of T5's sources and targets."""

import jax
import jax.numpy as jnp

from plmjax.errors import UserError
from plmjax.objectives.text_to_text.text_to_text import Stream, ended
from plmjax.vocabulary import Vocabulary


def check_sentinels(spans: int, vocabulary: Vocabulary) -> None:
    """Raises UserError for a tokenizer with fewer sentinels than a text has spans to hide."""
    if len(vocabulary.sentinels) < spans:
        raise UserError(
            f"Expected a tokenizer with at least {spans} sentinels for rows of this length, found "
            f"{len(vocabulary.sentinels)}; use one with more of them, or lower --data.sequence_length."
        )


def spans_replaced(ids: jax.Array, hidden: jax.Array, real: jax.Array, vocabulary: Vocabulary) -> Stream:
    """Each span of hidden tokens becomes one sentinel, another for every span; the end token follows.

    ids int [N]; hidden and real bool [N]. As `noise_span_to_unique_sentinel`: where a text has more spans than there
    are sentinels, the ids below the last of them serve as further ones.
    """
    hidden = hidden & real
    begins = hidden & ~jnp.concatenate([jnp.zeros(1, bool), hidden[:-1]])
    ids = jnp.where(begins, vocabulary.sentinels[0] + 1 - jnp.cumsum(begins), ids)
    return ended(ids, real & (begins | ~hidden), vocabulary)
