"""Sequence to sequence: each target token is predicted from a source and the target tokens before it.

Label smoothing (Vaswani et al. 2017, arXiv 1706.03762, section 5.4) sets the target probability to 1 - e at the target
and e / (V - 1) at every other token, as tensor2tensor's `smoothing_cross_entropy` and fairseq 0.12.2's
criterions/label_smoothed_cross_entropy.py do.

Deviation: the paper's source for this (Szegedy et al. 2016, section 7) spreads e over all V tokens, including the
target. That is the released formula with e (V - 1) / V in place of e.

The z-loss is z log(Z)^2, with Z the sum of the exponentials of a position's scores. It keeps log(Z) near 0
(`softmax_cross_entropy_with_logits` of mesh_tensorflow 0.1.21; T5 trains with z = 1e-4).
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.errors import UserError
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply

INPUTS = ("input_ids", "segment_ids", "positions")


@dataclasses.dataclass(frozen=True)
class SequenceToSequence(Objective):
    """Mean nats of each target token given the source and the target tokens before it.

    Rows are such as `PairedStreams` gives. The module is an encoder-decoder that returns `scores`. Smoothing and z-loss
    apply to the training loss only. The metric `nats` and the loss of held-out text are without them.

    Raises:
        UserError: label smoothing is not a fraction of the probability, or the z-loss is negative.
    """

    label_smoothing: float = 0.0
    """Share of the probability for the tokens other than the target."""
    z_loss: float = 0.0
    """Factor of the square of each position's log(Z)."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"Expected --objective.label_smoothing of at least 0 and below 1, found {self.label_smoothing}; "
                "change it."
            )
        if self.z_loss < 0:
            raise UserError(f"Expected --objective.z_loss of 0 or more, found {self.z_loss}; change it.")

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {name: batch[name] for name in (*INPUTS, *(f"decoder_{name}" for name in INPUTS))}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of targets, or a small number above 0 for rows without targets."""
        return {"target": jnp.maximum(jnp.sum(batch["next_weights"]), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the loss of the targets and the number of correct predictions.

        If the loss has smoothing or a z-loss, also return the nats of the targets.
        """
        ids, weights = batch["next_ids"], batch["next_weights"]
        scores = apply(self, module, loss_inputs, batch=batch, key=key, training=training).scores
        smoothing, z_loss = (self.label_smoothing, self.z_loss) if training else (0.0, 0.0)
        loss, nats, likeliest = scores.smoothed_cross_entropy(ids, weights, smoothing=smoothing, z_loss=z_loss)
        count = jnp.sum(weights)
        metrics = {"accuracy": (jnp.sum(weights * likeliest), count)}
        if smoothing or z_loss:
            metrics["nats"] = jnp.sum(weights * nats), count
        return LossSums({"target": loss} | self.extra_terms(batch, nats), metrics)

    def extra_terms(self, batch: Batch, nats: jax.Array) -> dict[str, jax.Array]:
        """Return further terms of `weights`, not trained, from the plain nats of the targets, [B T]."""
        return {}

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["next_ids"], batch["next_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        rows, length = batch["input_ids"].shape
        return config.train_flops(rows, length, batch["decoder_input_ids"].shape[1])
