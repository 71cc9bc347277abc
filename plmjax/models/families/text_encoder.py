"""An encoder that returns one vector for each text: its hidden states, pooled over the tokens of the text."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.layers.tokens import gather_tokens

POOLINGS = ("mean", "cls")


@flax.struct.dataclass
class TextEncoderOutput:
    """The output of a text encoder.

    vectors: float32 [B D], or [B K D] of packed texts.
    """

    vectors: jax.Array


class TextEncoder(nn.Module):
    """The pooled hidden states of the last layer (Reimers and Gurevych 2019, arXiv 1908.10084, section 3).

    It adds no parameters to those of the encoder. The encoder has the name of its system.

    pooling: "mean" over all tokens of a text, including special tokens; or "cls", the token that represents the text.
    """

    config: ModelConfig
    execution: Execution = Execution()
    pooling: str = "mean"

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> TextEncoderOutput:
        """Take the same as the encoder and return the vectors of whole rows, or of the texts at `cls_positions`.

        The text at cls_positions[:, k], int [B K], has the segment k + 1. For a text that does not exist, the pooling
        "mean" returns 0, and "cls" the hidden state of an arbitrary token.
        """
        inputs |= {"segment_ids": segment_ids, "deterministic": deterministic}
        output = self.config.module(Purpose.EMBEDDING, self.execution)(input_ids, attention_mask, **inputs)
        states = output.last_hidden_state.astype(jnp.float32)
        if self.pooling == "cls":
            vectors = gather_tokens(states, _summaries(self.config, attention_mask, cls_positions, states))
        else:
            vectors = _means(states, _members(attention_mask, segment_ids, cls_positions, states))
        return TextEncoderOutput(vectors if cls_positions is not None else vectors[:, 0])


def _summaries(
    config: ModelConfig, attention_mask: jax.Array | None, cls_positions: jax.Array | None, states: jax.Array
) -> jax.Array:
    """Return the positions of the tokens that represent texts, int [B K]; K is 1 for whole rows."""
    if cls_positions is not None:
        return cls_positions
    batch, length = states.shape[:2]
    template = config.template
    if template.summary == "first":
        return jnp.zeros((batch, 1), jnp.int32)
    if template.padding == "left" or attention_mask is None:
        return jnp.full((batch, 1), length - 1, jnp.int32)
    return jnp.sum(attention_mask.astype(jnp.int32), axis=1, keepdims=True) - 1


def _members(
    attention_mask: jax.Array | None, segment_ids: jax.Array | None, cls_positions: jax.Array | None, states: jax.Array
) -> jax.Array:
    """Return bool [B K T], true for the tokens of each text; K is 1 for whole rows."""
    if cls_positions is None:
        present = jnp.ones(states.shape[:2], bool) if attention_mask is None else attention_mask.astype(bool)
        return present[:, None]
    return segment_ids[:, None] == 1 + jnp.arange(cls_positions.shape[1])[:, None]


def _means(states: jax.Array, members: jax.Array) -> jax.Array:
    """Return the mean hidden state of the tokens of each text: [B T D], bool [B K T] -> [B K D]."""
    counts = jnp.maximum(jnp.sum(members, axis=-1, keepdims=True), 1)
    shares = members.astype(jnp.float32) / counts
    return jnp.einsum("bkt,btd->bkd", shares, states, precision=jax.lax.Precision.HIGHEST)
