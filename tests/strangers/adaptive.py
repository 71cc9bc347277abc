"""A GPT-2 with an adaptive softmax of two clusters (Grave et al., ICML 2017, arXiv 1609.04309), in one file.

A frequent token competes with the other frequent tokens and with the cluster of all rare tokens; a rare token also
competes with the other rare tokens, on fewer features.
"""

import dataclasses
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Purpose, declare
from plmjax.models.gpt import DecoderOutput
from plmjax.models.gpt2 import SYSTEM as GPT2
from plmjax.models.gpt2 import Gpt2Config


@dataclasses.dataclass(frozen=True)
class AdaptiveConfig(Gpt2Config):
    """Sizes of a GPT-2, and those of the clusters."""

    frequent: int = 16
    rare_features: int = 4


@flax.struct.dataclass
class AdaptiveScores(TokenScores):
    """hidden: [B T D]. head: [C+1 D], of C frequent tokens and the cluster. down: [D E] and tail: [V-C E], of the rare.

    The logits are log probabilities.
    """

    hidden: jax.Array
    head: jax.Array
    down: jax.Array
    tail: jax.Array

    def logits(self) -> jax.Array:
        head, tail = self._clusters()
        return jnp.concatenate([head[..., :-1], head[..., -1:] + tail], axis=-1)

    def last_logits(self) -> jax.Array:
        return self._last().logits()[:, 0]

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        head, tail = self._clusters()
        count = len(self.head) - 1
        rare = targets >= count
        of_head = _chosen(head, jnp.minimum(targets, count))
        found = of_head + jnp.where(rare, _chosen(tail, jnp.where(rare, targets - count, 0)), 0)
        best = jnp.maximum(jnp.max(head[..., :-1], -1), head[..., -1] + jnp.max(tail, -1))
        return -found, found >= best

    def _last(self) -> Self:
        return self.replace(hidden=self.hidden[:, -1:])

    def _clusters(self) -> tuple[jax.Array, jax.Array]:
        """Log probabilities, [B T C+1] and [B T V-C]."""
        hidden = self.hidden.astype(jnp.float32)
        products = hidden @ self.head.T, hidden @ self.down @ self.tail.T
        return tuple(jax.nn.log_softmax(x, axis=-1) for x in products)


def _chosen(x: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, ids[..., None], axis=-1)[..., 0]


class AdaptiveForCausalLM(nn.Module):
    """The decoder and the tables of the two clusters."""

    config: AdaptiveConfig
    execution: Execution

    @nn.compact
    def __call__(self, input_ids: jax.Array, **inputs: Any) -> DecoderOutput:
        config = self.config
        output = config.module(Purpose.ENCODING, self.execution)(input_ids, **inputs)

        def table(name: str, axes: tuple[str | None, ...], *shape: int) -> jax.Array:
            return self.param(name, nn.with_logical_partitioning(config.initializer, axes), shape)

        head = table("head", (None, "embed"), config.frequent + 1, config.n_embd)
        down = table("down", ("embed", None), config.n_embd, config.rare_features)
        tail = table("tail", (None, None), config.vocab_size - config.frequent, config.rare_features)
        return output.replace(scores=AdaptiveScores(output.last_hidden_state, head, down, tail))


SYSTEM = declare(
    dataclasses.replace(
        GPT2,
        config=AdaptiveConfig,
        modules={
            Purpose.PRETRAINING: AdaptiveForCausalLM,
            Purpose.WRITING: AdaptiveForCausalLM,
            Purpose.ENCODING: GPT2.modules[Purpose.ENCODING],
        },
    )
)
