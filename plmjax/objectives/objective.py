"""What a pretraining task is to the train step.

A step asks an objective, in this order: `corrupt` the batch, give the `weights` of the corrupted batch, then for each
microbatch the `sums`. The loss is

    sum over terms of  coefficient * (global sum of the term) / (global weight of the term)

over the whole batch, the whole mesh and every microbatch. Weights therefore come from the corrupted batch alone and are
known before the first forward pass, and gradient accumulation gives the gradient of the big batch.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.layers.execution import Execution
from plmjax.vocabulary import Vocabulary

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class Sums:
    """What one microbatch contributes.

    losses: term -> differentiable sum over the microbatch, float32 scalars; the terms of `Objective.weights`.
    metrics: name -> (sum, weight), reported as sum / weight.
    carry: what the next step starts from, of the structure and shapes of the carry that came in.
    """

    losses: dict[str, jax.Array]
    metrics: dict[str, tuple[jax.Array, jax.Array]]
    carry: Any = ()


@dataclasses.dataclass(frozen=True)
class Objective:
    """Base of every task. A subclass is a frozen dataclass of its settings and overrides what differs."""

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """The linen module that this task trains, built from the model's config."""
        return config.for_pretraining(execution)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Keyword arguments of the module's `__call__`, taken from a corrupted batch."""
        raise NotImplementedError(f"{type(self).__name__} must say what its model is given.")

    def init(self, module: nn.Module, key: jax.Array, batch: Batch, carry: Any) -> Any:
        """Parameters (boxed with their logical axes) for batches shaped as `batch`, which is corrupted already."""
        return module.init({"params": key}, **self.model_inputs(batch), deterministic=True)["params"]

    def initial_carry(self, config: Any, batch_size: int, sequence_length: int) -> Any:
        """The carry before the first step: arrays, boxed with logical axes where they have a "batch" axis."""
        return ()

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary) -> Batch:
        """What the model sees and what it must predict, made from the clean batch inside the jitted step."""
        return batch

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Term -> weight of a corrupted batch (or of any part of it), float32 scalars that add up over parts."""
        raise NotImplementedError(f"{type(self).__name__} must say how its loss is weighted.")

    def coefficients(self) -> dict[str, float]:
        """Term -> its factor in the total loss; terms left out count once."""
        return {}

    def target_term(self, batch: Batch) -> str:
        """The term whose mean is "nats a target", reported as eval/loss: the first of `weights`."""
        return next(iter(self.weights(batch)))

    def sums(self, module: nn.Module, params: Any, carry: Any, batch: Batch, dropout: jax.Array | None) -> Sums:
        """Losses and metrics of a corrupted (micro)batch. `dropout` is a key, or None for a deterministic pass."""
        raise NotImplementedError(f"{type(self).__name__} must say what it loses.")

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """(ids, weights) of the tokens that a corrupted batch asks for: what the unigram entropy is taken over."""
        raise NotImplementedError(f"{type(self).__name__} must name its targets.")

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Model FLOPs of one training step (forward and backward, no recomputation), in closed form."""
        raise NotImplementedError(f"{type(self).__name__} must count its FLOPs.")


def apply(
    objective: Objective,
    module: nn.Module,
    params: Any,
    batch: Batch,
    dropout: jax.Array | None,
    method: str = "__call__",
) -> Any:
    """The outputs of the module, or of one of its methods, for a corrupted batch."""
    rngs = None if dropout is None else {"dropout": dropout}
    inputs = objective.model_inputs(batch)
    return module.apply({"params": params}, **inputs, deterministic=dropout is None, rngs=rngs, method=method)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[targets] in float32: logits [... V], targets int [...] -> nats [...]."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen
