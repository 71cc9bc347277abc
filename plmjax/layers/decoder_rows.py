"""The inputs of a decoder's layers for the rows of one call, with or without a cache of earlier tokens."""

import dataclasses

import jax
import jax.numpy as jnp

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.visibility import Causal, Visibility
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.tokens import check_token_inputs


@dataclasses.dataclass(frozen=True)
class DecoderRows:
    """The inputs of a decoder's layers for the rows of a call.

    positions: int [B T].
    visibility: the tokens that every token sees.
    cache: the given cache, with the mask of these tokens; None without a cache.
    """

    positions: jax.Array
    visibility: Visibility
    cache: KeyValueCache | None


def read_rows(
    config: ModelConfig,
    input_ids: jax.Array,
    attention_mask: jax.Array | None,
    positions: jax.Array | None,
    segment_ids: jax.Array | None,
    prefix_lengths: jax.Array | None,
    cache: KeyValueCache | None,
) -> DecoderRows:
    """Convert the inputs of a decoder's call (see `GptModel`) to the inputs of its layers."""
    check_token_inputs(config.longest, config.option("longest"), input_ids, attention_mask, positions, segment_ids)
    if cache is None:
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        visibility = Visibility.of_rows(attention_mask, segment_ids)
        return DecoderRows(positions, visibility.also(Causal(prefix_lengths)), None)
    if segment_ids is not None:
        raise ValueError("Expected rows of one sequence with a cache, found segment_ids; read them without a cache.")
    mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
    positions = cache.positions(mask) if positions is None else positions
    cache = cache.with_mask(mask)
    return DecoderRows(positions, cache.visibility(prefix_lengths), cache)
