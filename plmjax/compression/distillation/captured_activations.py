"""Activations of a model, captured while an objective computes its loss: inputs of the distillation terms.

An objective applies its module, but returns only sums. So `capture` intercepts the calls of the module. This works for
every objective without a change to it.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Kind
from plmjax.layers.tokens import gather_tokens
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.objectives.objective import cross_entropy

POSITIONS = "masked_positions"
"""Argument of a masked language model that limits its logits to these positions."""


@flax.struct.dataclass
class ComputedScores(TokenScores):
    """Scores of the vocabulary that are computed once, for the objective and for the terms.

    scores: float32 [B T V].
    """

    scores: jax.Array

    def logits(self) -> jax.Array:
        return self.scores

    def last_logits(self) -> jax.Array:
        """Return the logits of the last position, float32 [B V]."""
        return self.scores[:, -1]

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the nats of targets, int [B T], and whether each has the highest score, bool [B T]."""
        chosen = jnp.take_along_axis(self.scores, targets[..., None], axis=-1)[..., 0]
        return cross_entropy(self.scores, targets), chosen >= jnp.max(self.scores, axis=-1)


@dataclasses.dataclass
class Activations:
    """The activations of one forward pass.

    config: sizes of the model. params: its parameters. outputs: the result of the module. last_hidden_state: the last
    hidden states of the encoder, [B T D]. hidden_states: the hidden states of all layers, [L+1 B T D], the embeddings
    first; only if requested. step: int32 scalar, number of finished optimizer steps.
    """

    config: ModelConfig
    params: Any
    outputs: Any = None
    last_hidden_state: jax.Array | None = None
    hidden_states: jax.Array | None = None
    step: Any = 0


@contextlib.contextmanager
def capture(
    config: ModelConfig, params: Any, *, hidden_states: bool = False, every_token: bool = False, scores: bool = False
) -> Iterator[Activations]:
    """Capture the activations of a module of `config` that is applied in the block.

    Args:
        hidden_states: the encoder returns the output of every layer.
        every_token: a masked language model computes the logits of all tokens; its caller still gets only the logits at
            `masked_positions`.
        scores: next-token scores are computed at once, [B T V], as `ComputedScores`.
    """
    activations, depth = Activations(config, params), 0

    def watch(call: Any, args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
        nonlocal depth
        path = context.module.path
        if context.method_name != "__call__" or len(path) > 1:
            return call(*args, **kwargs)
        if path == (config.system.name,):
            output = call(*args, **kwargs | ({"output_hidden_states": True} if hidden_states else {}))
            activations.last_hidden_state = getattr(output, "last_hidden_state", None)
            activations.hidden_states = output.hidden_states if hidden_states else None
            return output
        if path or depth:  # another part of the module, or the method of a base class
            return call(*args, **kwargs)
        depth += 1
        try:
            positions = kwargs.pop(POSITIONS, None) if every_token else None
            output = call(*args, **kwargs)
        finally:
            depth -= 1
        if scores and isinstance(getattr(output, "scores", None), VocabularyScores):
            output = output.replace(scores=ComputedScores(output.scores.logits()))
        activations.outputs = output
        return output if positions is None else output.replace(logits=gather_tokens(output.logits, positions))

    with nn.intercept_methods(watch):
        yield activations


def one_token_inputs(config: ModelConfig) -> dict[str, jax.Array]:
    """Return inputs of one token, to initialize the parameters of a module."""
    names = ("input_ids", "decoder_input_ids") if config.system.kind is Kind.ENCODER_DECODER else ("input_ids",)
    return {name: jnp.zeros((1, 1), jnp.int32) for name in names}
