"""The weights of attention among the outputs of a model: what `output_attentions=True` adds.

They are the probabilities behind the softmax and before dropout, float32 [L B N T S] for L layers, B rows, N heads, T
queries and S keys, the first layer first. A key that a query does not see has the weight 0, in every form of attention;
so the weights of a query that sees a key sum to 1, and those of a query that sees none are all 0. In a model with a
memory or a cache S counts what is before the T tokens, too, and the keys are in the order of the text. Where layers
differ in their number of heads, N is the largest one, and the heads that a layer lacks are 0, behind its own.
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

    encoder_attentions: of the source to itself, float32 [L B N S S]; only if requested.
    decoder_attentions: of the target to itself, float32 [L B N T T]; only if requested.
    cross_attentions: of the target to the source, float32 [L B N T S]; only if requested.
    """

    encoder_attentions: jax.Array | None = None
    decoder_attentions: jax.Array | None = None
    cross_attentions: jax.Array | None = None


@flax.struct.dataclass(kw_only=True)
class HeadAttentions(Attentions, EncoderDecoderAttentions):
    """Base of the outputs of a head that any kind of model may have below it."""


def attentions_of(output: Any) -> dict[str, jax.Array | None]:
    """Return name -> weights of attention, of the fields that `HeadAttentions` and an output share."""
    names = (field.name for field in dataclasses.fields(HeadAttentions))
    return {name: getattr(output, name) for name in names if hasattr(output, name)}
