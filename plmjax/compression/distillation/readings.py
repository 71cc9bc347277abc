"""The outputs of a model while an objective computes its loss: for the terms of a teacher, in the same forward pass.

An objective gives its batch to the module itself and returns sums. `observed` looks at the calls of the module while it
does so. It works for every objective, and no objective has to know of it.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax

from plmjax.contracts.model_config import ModelConfig
from plmjax.layers.tokens import gather_tokens

POSITIONS = "masked_positions"
"""Argument of a masked language model that limits its logits to these positions."""


@dataclasses.dataclass
class Reading:
    """One forward pass.

    config: sizes of the model. params: its parameters. outputs: those of the module. last_hidden_state: that of its
    encoder, [B T D]. hidden_states: those of all its layers, [L+1 B T D], the embeddings first; None unless they were
    asked for.
    """

    config: ModelConfig
    params: Any
    outputs: Any = None
    last_hidden_state: jax.Array | None = None
    hidden_states: jax.Array | None = None


@contextlib.contextmanager
def observed(
    config: ModelConfig, params: Any, *, hidden_states: bool = False, every_token: bool = False
) -> Iterator[Reading]:
    """Fill the reading that is returned while a module of `config` is applied in the block.

    hidden_states: the encoder returns the output of every layer. every_token: a masked language model computes the
        logits of all tokens; its caller still gets those of `masked_positions`.
    """
    reading, depth = Reading(config, params), 0

    def watch(call: Any, args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext) -> Any:
        nonlocal depth
        path = context.module.path
        if context.method_name != "__call__" or len(path) > 1:
            return call(*args, **kwargs)
        if path == (config.system.name,):
            output = call(*args, **kwargs | ({"output_hidden_states": True} if hidden_states else {}))
            reading.last_hidden_state = getattr(output, "last_hidden_state", None)
            reading.hidden_states = output.hidden_states if hidden_states else None
            return output
        if path or depth:  # another part of the module, or the method of a base class
            return call(*args, **kwargs)
        depth += 1
        try:
            positions = kwargs.pop(POSITIONS, None) if every_token else None
            reading.outputs = output = call(*args, **kwargs)
        finally:
            depth -= 1
        return output if positions is None else output.replace(logits=gather_tokens(output.logits, positions))

    with nn.intercept_methods(watch):
        yield reading
