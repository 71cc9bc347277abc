"""Attention weights in the outputs of a model: the arrays that `output_attentions=True` adds.

They are the probabilities after the softmax and before dropout, float32 [L B N T S] for L layers, B rows, N heads, T
queries and S keys, from the first layer to the last. In every form of attention a key that a query does not see has the
weight 0. The weights of a query sum to 1, or are all 0 if it sees no key. With a memory or a cache, S also counts the
tokens before the T tokens, and the keys are in the order of the text. If layers differ in their number of heads, N is
the largest number. The weights of a layer with fewer heads are padded with 0 after its last head.
"""

import dataclasses
from typing import Any

import flax.struct
import jax


@flax.struct.dataclass(kw_only=True)
class Attentions:
    """Base of the outputs of a model that reads one row.

    attentions: float32 [L B N T S]; only if requested.
    """

    attentions: jax.Array | None = None


@flax.struct.dataclass(kw_only=True)
class EncoderDecoderAttentions:
    """Base of the outputs of a model that reads S tokens of a source and T tokens of a target.

    encoder_attentions: self-attention of the source, float32 [L B N S S]; only if requested.
    decoder_attentions: self-attention of the target, float32 [L B N T T]; only if requested.
    cross_attentions: attention from the target to the source, float32 [L B N T S]; only if requested.
    """

    encoder_attentions: jax.Array | None = None
    decoder_attentions: jax.Array | None = None
    cross_attentions: jax.Array | None = None


@flax.struct.dataclass(kw_only=True)
class HeadAttentions(Attentions, EncoderDecoderAttentions):
    """Base of the outputs of a head on any kind of model."""


def attentions_of(output: Any) -> dict[str, jax.Array | None]:
    """Return a dict from name to attention weights: the fields of `HeadAttentions` that `output` has."""
    names = (field.name for field in dataclasses.fields(HeadAttentions))
    return {name: getattr(output, name) for name in names if hasattr(output, name)}
