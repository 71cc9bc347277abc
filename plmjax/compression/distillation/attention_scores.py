"""Attention scores before the softmax, computed from each layer's input and its projections.

For `output_attentions`, a model returns the softmax of these scores over the visible keys. A distillation compares the
scores themselves, of a few layers or of one at a time. It computes them again from the hidden states, so that a step
keeps no scores of other layers. This costs two projections and a product per layer.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from plmjax.compression.distillation.captured_activations import Activations
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.layers.product import float32_product


def attention_scores(activations: Activations, layer: int) -> jax.Array:
    """Return Q K^T / sqrt(H) of one layer, counted from 0: float32 [B N T S]. Masked pairs have scores, too."""
    attention = activations.params[activations.config.system.name]["encoder"]["layers"]["attention"]
    own = {name: jax.tree.map(lambda leaf: leaf[layer], attention[name]) for name in ("query", "key")}
    return scores_of(own, activations.hidden_states[layer])


def scores_of(attention: Any, x: jax.Array) -> jax.Array:
    """Return Q K^T / sqrt(H) from the input of queries and keys, [B T D] -> float32 [B N T S].

    attention: parameters of one layer, with the kernels [D N H] and the biases of `query` and `key`.
    """

    def projected(name: str) -> jax.Array:  # [B T N H]
        kernel, bias = (attention[name][part].astype(x.dtype) for part in ("kernel", "bias"))
        return jnp.einsum("BTD,DNH->BTNH", x, kernel) + bias

    query, key = projected("query"), projected("key")
    query = query * jnp.asarray(1 / math.sqrt(query.shape[-1]), query.dtype)
    return float32_product(functools.partial(jnp.einsum, "BTNH,BSNH->BNTS"), query, key)


def check_attention(config: ModelConfig, role: str) -> int:
    """Return the number of heads of a model whose scores can be computed from its hidden states.

    Raises:
        UserError: its layers differ in form from BERT's.
    """
    module = config.module(Purpose.ENCODING, Execution())
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    params = flax.traverse_util.flatten_dict(nn.meta.unbox(variables["params"]), sep="/")
    kernels = [params.get(f"encoder/layers/attention/{name}/kernel") for name in ("query", "key")]
    windowed = bool(config.windows) or config.widest_window is not None
    if windowed or any(one is None or one.shape[:2] != (config.depth, config.width) for one in kernels):
        raise UserError(
            f"Expected a {role} whose layers attend to their own input, as BERT's, to compare its scores of attention, "
            f"found {config.system}; set --compression.attention 0, or take --method soft_targets."
        )
    return kernels[0].shape[2]


def scores_flops(config: ModelConfig, layers: int, rows: int, length: int) -> float:
    """Return the FLOPs of the scores of `layers` layers in a forward pass: 2 (2 D^2 + T D) per token and layer."""
    return 2.0 * layers * rows * length * (2 * config.width**2 + length * config.width)
