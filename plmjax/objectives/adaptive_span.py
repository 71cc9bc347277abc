"""Adaptive-Span's training objective: the next token, and the length of the spans.

Sukhbaatar et al. (ACL 2019, arXiv 1905.07799, section 3.2); facebookresearch/adaptive-span adaptive_span.py:

    loss = nats of the next token + coefficient * sum over layers of the mean over heads of S z

S is the longest possible span, and z a head's fraction of it. An evaluation reports only the nats.

A step reads no more tokens than the longest span of any head needs. Its program depends only on the spans before the
step, so that a run that was killed repeats it to the last bit.

Deviation: the released code reads a multiple of 64 tokens. Here long spans are read in coarser steps, so that fewer
programs are compiled, and up to a quarter more is read. A token at which a mask just becomes 0 is always read, since
its gradient makes the span grow.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.errors import FROM_0, check_ranges
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.objectives.capabilities import AdaptsModel, check_memory
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums
from plmjax.objectives.segment_recurrence import SegmentRecurrence

STEP = 64
"""The number of tokens that a step reads is a multiple of STEP (adaptive_span.py, `get_trim_len`)."""


@dataclasses.dataclass(frozen=True)
class AdaptiveSpanPretraining(AdaptsModel, SegmentRecurrence):
    """Mean nats of the next token given its row and the memory, plus a penalty on the spans of all heads."""

    span_coefficient: float = 5e-7
    """Factor of the spans in the loss; 5e-7 for the published models, 2e-6 for the small one."""

    def __post_init__(self) -> None:
        check_ranges("objective", self, span_coefficient=FROM_0)

    def constants(self, config: AdaptiveSpanConfig, sources: ConstantSources) -> tuple[()]:
        """Return no constants.

        Raises:
            UserError: the training text is shorter than a span.
        """
        check_memory(config.span, "model.attn_span", sources)
        return ()

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        rows = jnp.asarray(len(batch["input_ids"]), jnp.float32)
        return super().weights(batch) | {"span": rows}

    def coefficients(self) -> dict[str, float]:
        return {"span": self.span_coefficient}

    def statistic(self, config: AdaptiveSpanConfig, params: Any) -> jax.Array:
        """Return the largest number of tokens that a head looks back, with its ramp and the token at the ramp's end."""
        longest = jnp.floor(config.attn_span * jnp.max(_fractions(params).astype(jnp.float32))) + config.ramp + 1
        return jnp.minimum(longest, config.attn_span)

    def adapt_config(self, config: AdaptiveSpanConfig, statistic: float) -> AdaptiveSpanConfig:
        """Return the config that reads the longest span, rounded up to a multiple of `STEP` tokens.

        Spans of 8 STEP tokens or more are rounded up to a multiple of 2 STEP, of 16 STEP or more to one of 4 STEP, and
        so on.
        """
        step = STEP << max(0, (int(statistic) // (4 * STEP)).bit_length() - 1)
        needed = step * math.ceil(statistic / step)
        return config if needed >= config.span else dataclasses.replace(config, computed_span=needed)

    def describe_computation(self, config: AdaptiveSpanConfig) -> str:
        return f"the last {config.span:,} tokens of the longest span of {config.attn_span:,}"

    def constrain(self, params: Any) -> Any:
        """Clip the fraction of the longest span of every head to [0, 1] (trainer.py, `clamp_param`)."""
        return _with_fractions(params, jnp.clip(_fractions(params), 0, 1))

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the nats of the next tokens, the spans once for each row, and the memory after the rows.

        The metric `longest_span` is the largest number of tokens that a head looks back: `statistic`.
        """
        sums = super().sums(module, loss_inputs, batch, key, training=training)
        config, rows = module.config, jnp.asarray(len(batch["input_ids"]), jnp.float32)
        spans = config.attn_span * _fractions(loss_inputs.params).astype(jnp.float32)  # [L N]
        longest = jax.lax.stop_gradient(self.statistic(config, loss_inputs.params))
        return sums.replace(
            losses=sums.losses | {"span": rows * jnp.sum(jnp.mean(spans, axis=1))},
            metrics=sums.metrics | {"longest_span": (rows * longest, rows)},
        )


def _fractions(params: Any) -> jax.Array:
    """Return the fraction of the longest span of each head of each layer, [L N]."""
    return params["adaptive_span"]["layers"]["span_shares"]


def _with_fractions(params: Any, fractions: jax.Array) -> Any:
    model = params["adaptive_span"]
    layers = model["layers"] | {"span_shares": fractions}
    return params | {"adaptive_span": model | {"layers": layers}}
