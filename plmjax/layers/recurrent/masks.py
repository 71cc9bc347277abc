"""Masks of recurrent layers, from the token inputs of a model: tokens that are read, and first tokens of texts."""

import jax
import jax.numpy as jnp


def visible_tokens(attention_mask: jax.Array | None, segment_ids: jax.Array | None) -> jax.Array | None:
    """Return bool [B T], false at padding; None if no input marks padding."""
    masks = [mask > 0 for mask in (attention_mask, segment_ids) if mask is not None]
    return None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]


def text_starts(*numbers: jax.Array | None) -> jax.Array | None:
    """Return bool [B T], true at the first token of each text; None if all `numbers` are None.

    numbers: int [B T] each, or None. A text begins where one of them differs from that of the previous token.
    """
    given = [number for number in numbers if number is not None]
    if not given:
        return None
    changes = jnp.stack([jnp.diff(number, axis=1, prepend=number[:, :1] - 1) != 0 for number in given])
    return jnp.any(changes, axis=0)


def recurrent_masks(
    attention_mask: jax.Array | None, segment_ids: jax.Array | None, *texts: jax.Array | None
) -> dict[str, jax.Array | None]:
    """Return `visible` and `starts`, the masks that recurrent layers take.

    Args:
        attention_mask: [B T], 0 for padding.
        segment_ids: int [B T], the packed sequence of a token, 0 for padding; each sequence begins with a zero state.
        texts: int [B T], other numbers that differ between texts, such as token types.
    """
    return {
        "visible": visible_tokens(attention_mask, segment_ids),
        "starts": text_starts(*texts, segment_ids),
    }
