"""Token inputs of a model: shape checks, selection of tokens from a row, and mean pooling."""

import functools

import jax
import jax.numpy as jnp

from plmjax.errors import UserError
from plmjax.layers.product import float32_product


def check_token_inputs(longest: int | None, option: str, input_ids: jax.Array, *others: jax.Array | None) -> None:
    """Check the shapes and the length of a model's token inputs.

    Args:
        longest: maximum number of tokens in a row; None without a limit.
        option: the option of the config that sets `longest`, for the message.

    Raises:
        ValueError: the inputs do not all have the shape [B T].
        UserError: a row has more than `longest` tokens.
    """
    if input_ids.ndim != 2 or any(x is not None and x.shape != input_ids.shape for x in others):
        shapes = [x.shape for x in (input_ids, *others) if x is not None]
        raise ValueError(f"Expected token inputs that all have the shape [B T], found {shapes}.")
    if longest is not None and input_ids.shape[1] > longest:
        raise UserError(
            f"Expected rows of at most {longest} tokens, the positions of the model, found {input_ids.shape[1]}; "
            f"shorten the rows or set {option}."
        )


def first_of_each(segment_ids: jax.Array) -> jax.Array:
    """Return bool [B T], true at each token whose segment id, int [B T], differs from the previous one in its row."""
    return segment_ids != jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)), constant_values=-1)


def gather_tokens(x: jax.Array, positions: jax.Array | None) -> jax.Array:
    """Select tokens of each row: [B T D], int [B P] -> [B P D]; without positions select all."""
    return x if positions is None else jnp.take_along_axis(x, positions[..., None], axis=1, mode="clip")


def first_tokens(x: jax.Array, cls_positions: jax.Array | None) -> jax.Array:
    """Select the first token as the representation of its sequence: [B T D] -> [B D].

    cls_positions: int [B K], the first token of each packed sequence; then the result is [B K D].
    """
    return x[:, 0] if cls_positions is None else gather_tokens(x, cls_positions)


def last_tokens(x: jax.Array, attention_mask: jax.Array | None, cls_positions: jax.Array | None) -> jax.Array:
    """Select the last real token as the representation of its sequence: [B T D] -> [B D].

    attention_mask: [B T], 1 for real tokens; all by default.
    cls_positions: int [B K], the last token of each packed sequence; then the result is [B K D].
    """
    if cls_positions is not None:
        return gather_tokens(x, cls_positions)
    if attention_mask is None:
        return x[:, -1]
    last = x.shape[1] - 1 - jnp.argmax(attention_mask[:, ::-1].astype(jnp.int32), axis=1)
    return gather_tokens(x, last[:, None])[:, 0]


def mean_of_tokens(
    x: jax.Array, attention_mask: jax.Array | None, segment_ids: jax.Array | None, cls_positions: jax.Array | None
) -> jax.Array:
    """Return the mean of the real tokens of each sequence: [B T D] -> [B D].

    attention_mask: [B T], 1 for real tokens; all by default.
    segment_ids: int [B T], the packed sequence of each token; needed with `cls_positions`.
    cls_positions: int [B K], a token of each packed sequence; then the result is [B K D].
    """
    real = jnp.ones(x.shape[:2]) if attention_mask is None else attention_mask.astype(jnp.float32)
    if cls_positions is None:
        weights = real[:, None]  # [B 1 T]
    else:
        segments = jnp.take_along_axis(segment_ids, cls_positions, axis=1, mode="clip")
        weights = real[:, None] * (segments[:, :, None] == segment_ids[:, None])
    total = float32_product(functools.partial(jnp.einsum, "BKT,BTD->BKD"), weights.astype(x.dtype), x)
    mean = (total / jnp.maximum(weights.sum(-1, keepdims=True), 1)).astype(x.dtype)
    return mean[:, 0] if cls_positions is None else mean
