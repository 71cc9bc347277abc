"""The inputs of the layers for the rows of one call: in an encoder, and in a decoder with or without a cache."""

import dataclasses

import jax
import jax.numpy as jnp

from plmjax.contracts.mask_terms import Causal, MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.tokens import check_token_inputs


@dataclasses.dataclass(frozen=True)
class EncoderRows:
    """The inputs of an encoder's layers for the rows of a call.

    positions: int [B S].
    mask_terms: the keys that each token sees.
    mask: [B S], 1 for real tokens; None if all are real.
    segment_ids: int [B S], the packed sequence of each token, 0 for padding; None without packing.
    """

    positions: jax.Array
    mask_terms: MaskTerms
    mask: jax.Array | None
    segment_ids: jax.Array | None


@dataclasses.dataclass(frozen=True)
class DecoderRows(EncoderRows):
    """The inputs of a decoder's layers for the rows of a call.

    cache: the given cache, with the mask of these tokens; None without a cache.
    """

    cache: KeyValueCache | None


def read_source(
    config: ModelConfig,
    input_ids: jax.Array,
    attention_mask: jax.Array | None,
    *,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
) -> EncoderRows:
    """Convert the arguments of an encoder, [B S] each (see `EncoderDecoderModel`), to the inputs of its layers."""
    check_token_inputs(config.longest, config.option("longest"), input_ids, attention_mask, positions, segment_ids)
    positions = _default_positions(positions, input_ids)
    return EncoderRows(positions, MaskTerms.of_rows(attention_mask, segment_ids), attention_mask, segment_ids)


def read_rows(
    config: ModelConfig,
    input_ids: jax.Array,
    attention_mask: jax.Array | None,
    *,
    positions: jax.Array | None,
    segment_ids: jax.Array | None,
    prefix_lengths: jax.Array | None,
    cache: KeyValueCache | None,
) -> DecoderRows:
    """Convert the arguments of a decoder (see `GptModel`) to the inputs of its layers."""
    limit = "longest_target" if "longest_target" in config.field_names else "longest"
    others = attention_mask, positions, segment_ids
    check_token_inputs(config.longest_target, config.option(limit), input_ids, *others)
    if cache is None:
        mask_terms = MaskTerms.of_rows(attention_mask, segment_ids).also(Causal(prefix_lengths), *config.windows)
        return DecoderRows(_default_positions(positions, input_ids), mask_terms, attention_mask, segment_ids, None)
    if segment_ids is not None:
        raise ValueError("Expected rows of one sequence with a cache, found segment_ids; read them without a cache.")
    mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
    positions = cache.positions(mask) if positions is None else positions
    cache = cache.with_mask(mask)
    mask_terms = cache.mask_terms(prefix_lengths).also(*config.windows)
    return DecoderRows(positions, mask_terms, attention_mask, None, cache)


def _default_positions(positions: jax.Array | None, input_ids: jax.Array) -> jax.Array:
    """Return the given positions, or 0, 1, ... by default: int [B T]."""
    return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape) if positions is None else positions
