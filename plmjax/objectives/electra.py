"""Replaced token detection (Clark et al., ICLR 2020, arXiv 2003.10555, section 2; google-research/electra).

    loss = generator_weight x mean nats of the masked tokens + discriminator_weight x mean nats of every token's label

Tokens are masked, the generator predicts them, and a token is sampled from each prediction. The discriminator decides
for every token if it was sampled. A sampled token that equals the original counts as an original. No gradient passes
through the sampling.

Rows are corrupted inside the jitted step: `corrupt` masks tokens, `sums` samples their replacements. The key of the
noise comes with the row. So the noise is the same on every mesh and in every microbatch. Fields added to a batch, for P
positions a row:

    masked_positions   int32 [B P]     positions, drawn with replacement; 0 for an unused entry
    masked_ids         int32 [B P]     the original tokens there
    masked_weights     float32 [B P]   1 for a prediction, 0 for an unused entry
    original_ids       int32 [B T]     the tokens before masking
    sampling_keys      uint32 [B 2]    keys of the noise that sampling adds to the logits

A position that was drawn several times counts as often in the generator's loss. As in the released code
(pretrain/pretrain_helpers.py), the discriminator then sees the mean of its sampled ids, rounded down. This is some
other token, unless the ids are equal.

Deviation: a sequence without a token that may be masked has no prediction; the released code divides 0 by 0.
Deviation: rows of fewer than 7 tokens have capacity for one prediction; the released code leaves them none.
"""

import dataclasses
import functools
import math
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.masked_language_model import MaskedLanguageModel, check_rows
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply


@dataclasses.dataclass(frozen=True)
class ElectraPretraining(Objective):
    """Training of a generator, and of the discriminator on the generator's samples, in one step.

    Raises:
        UserError: fractions or weights out of their range.
    """

    rate: float = 0.15
    """Share of a sequence's tokens to predict, including special tokens; 0.25 for the published Large."""
    mask_fraction: float = 0.85
    """Share of the predictions whose token is replaced by [MASK]; the generator sees the tokens of the others."""
    generator_weight: float = 1.0
    """Factor of the masked language model's loss."""
    discriminator_weight: float = 50.0
    """Factor of the loss of replaced token detection."""

    def __post_init__(self) -> None:
        if not (0 < self.rate < 1 and 0 <= self.mask_fraction <= 1):
            raise UserError(
                f"Expected --objective.rate between 0 and 1 and --objective.mask_fraction from 0 to 1, found "
                f"{self.rate} and {self.mask_fraction}; change them."
            )
        if min(self.generator_weight, self.discriminator_weight) < 0:
            raise UserError(
                f"Expected --objective.generator_weight and --objective.discriminator_weight of 0 or more, found "
                f"{self.generator_weight} and {self.discriminator_weight}; change them."
            )

    def _max_predictions(self, length: int) -> int:
        """Return the maximum number of predictions of a sequence in rows of this length."""
        return max(1, int((self.rate + 0.005) * length))

    def predictions(self, batch: dict[str, jax.ShapeDtypeStruct] | Batch) -> int:
        """Return P: the maximum number of predictions of a sequence, or the capacity of a row of several sequences."""
        length = batch["input_ids"].shape[1]
        sequences = _sequences(batch)
        return self._max_predictions(length) if sequences == 1 else math.ceil(self.rate * length) + sequences

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Mask tokens of every packed sequence: of n tokens round(rate n), at least 1, drawn with replacement.

        Raises:
            UserError: the tokenizer has no [MASK].
        """
        if vocabulary.mask < 0:
            raise UserError("Expected a tokenizer with a mask token, found none; train or take a wordpiece tokenizer.")
        check_rows(batch)
        never = jnp.array([vocabulary.cls, vocabulary.sep, vocabulary.mask, vocabulary.pad])
        places, sequences = self.predictions(batch), _sequences(batch)

        def corrupt_row(key: jax.Array, ids: jax.Array, segments: jax.Array) -> Batch:
            choice, hiding, sampling = jax.random.split(key, 3)
            length, candidate = len(ids), (segments > 0) & ~jnp.isin(ids, never)
            within = jnp.arange(1, sequences + 1)[:, None] == jnp.minimum(segments, sequences)  # [K T]
            candidates = jnp.sum(within & candidate, axis=1)
            counts = jnp.round(jnp.sum(within, axis=1).astype(jnp.float32) * self.rate).astype(jnp.int32)
            counts = jnp.clip(counts, 1, self._max_predictions(length)) * (candidates > 0)

            # The entries of a row are those of its first sequence, then of its second, and so on. Its candidates have
            # the same order.
            ends, place = jnp.cumsum(counts), jnp.arange(places)
            used = place < ends[-1]
            owner = jnp.minimum(jnp.sum(place[:, None] >= ends, axis=1), sequences - 1)
            draw = jnp.floor(jax.random.uniform(choice, (places,)) * candidates[owner]).astype(jnp.int32)
            draw += (jnp.cumsum(candidates) - candidates)[owner]
            positions = jnp.take(jnp.sort(jnp.where(candidate, jnp.arange(length), length)), draw, mode="clip")
            hidden = used & (jax.random.uniform(hiding, (places,)) < self.mask_fraction)
            return {
                "input_ids": ids.at[jnp.where(hidden, positions, length)].set(vocabulary.mask, mode="drop"),
                "masked_positions": jnp.where(used, positions, 0),
                "masked_ids": jnp.where(used, jnp.take(ids, positions, mode="clip"), 0),
                "masked_weights": used.astype(jnp.float32),
                "sampling_keys": jax.random.key_data(sampling),
            }

        keys = jax.random.split(key, len(batch["input_ids"]))
        hidden = jax.vmap(corrupt_row)(keys, batch["input_ids"], batch["segment_ids"])
        return batch | hidden | {"original_ids": batch["input_ids"]}

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        names = ("input_ids", "segment_ids", "positions", "token_type_ids", "masked_positions")
        return {name: batch[name] for name in names if name in batch}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of predictions, and of tokens other than padding. The released code adds 1e-6 to both."""
        tokens = jnp.sum(batch["segment_ids"] > 0).astype(jnp.float32)
        return {"mlm": jnp.sum(batch["masked_weights"]) + 1e-6, "rtd": tokens + 1e-6}

    def coefficients(self) -> dict[str, float]:
        return {"mlm": self.generator_weight, "rtd": self.discriminator_weight}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        return two_network_sums(self, module, loss_inputs, batch=batch, key=key, training=training)

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["masked_ids"], batch["masked_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of the generator with P predictions a row and the discriminator.

        The discriminator's head has 6 (D^2 + D) a token.
        """
        rows, length = batch["input_ids"].shape
        generator = config.train_flops(rows, length, self.predictions(batch))
        head = config.width**2 + config.width
        return generator + config.train_flops(rows, length, 0) + 6.0 * rows * length * head


def two_network_sums(
    objective: Objective, module: nn.Module, loss_inputs: LossInputs, *, batch: Batch, key: jax.Array, training: bool
) -> LossSums:
    """Return the sums of the terms "mlm" and "rtd" of a corrupted batch, with the fields of this module.

    module: a generator and a discriminator, with methods `generate` and `discriminate`.
    """
    first, second = jax.random.split(key)
    run = functools.partial(apply, objective, module, loss_inputs, training=training)
    logits = run(batch=batch, key=first, method="generate").logits
    generated = MaskedLanguageModel.masked_sums(logits, batch)
    shown = batch | {"input_ids": replace_masked_tokens(batch, logits)}
    del shown["masked_positions"]
    scores = run(batch=shown, key=second, method="discriminate").logits
    found = detection_sums(scores, batch, shown["input_ids"] != batch["original_ids"])
    return LossSums(generated.losses | found.losses, generated.metrics | found.metrics)


def replace_masked_tokens(batch: Batch, logits: jax.Array) -> jax.Array:
    """Replace the masked positions of the original tokens by samples of softmax(logits [B P V]). Return int32 [B T]."""
    chex.assert_shape(logits, (*batch["masked_positions"].shape, None))
    shape, length = logits.shape[1:], batch["original_ids"].shape[1]

    def row(key: jax.Array, logits: jax.Array, positions: jax.Array, used: jax.Array, ids: jax.Array) -> jax.Array:
        uniform = jax.random.uniform(jax.random.wrap_key_data(key), shape)
        gumbel = -jnp.log(-jnp.log(uniform + 1e-9) + 1e-9)
        drawn = jnp.argmax(logits + gumbel, axis=-1)
        here = jnp.where(used, positions, length)
        times, total = (jnp.zeros(length, jnp.int32).at[here].add(value, mode="drop") for value in (1, drawn))
        return jnp.where(times > 0, total // jnp.maximum(times, 1), ids)

    logits, used = jax.lax.stop_gradient(logits), batch["masked_weights"] > 0
    return jax.vmap(row)(batch["sampling_keys"], logits, batch["masked_positions"], used, batch["original_ids"])


def detection_sums(scores: jax.Array, batch: Batch, fake: jax.Array) -> LossSums:
    """Return the loss and the metrics of the term "rtd": labels `fake`, bool [B T], and scores, float32 [B T]."""
    chex.assert_equal_shape([scores, fake, batch["segment_ids"]])
    real = batch["segment_ids"] > 0

    def count(tokens: jax.Array) -> jax.Array:
        return jnp.sum((tokens & real).astype(jnp.float32))

    predicted = scores > 0
    loss = jnp.sum(real * (jax.nn.softplus(scores) - fake * scores))
    caught, tokens = count(predicted & fake), count(real)
    metrics = {
        "rtd_loss": (loss, tokens),
        "rtd_accuracy": (count(predicted == fake), tokens),
        "rtd_precision": (caught, count(predicted)),
        "rtd_recall": (caught, count(fake)),
        "fakes": (count(fake), tokens),
    }
    return LossSums({"rtd": loss}, metrics)


def _sequences(batch: dict[str, jax.ShapeDtypeStruct] | Batch) -> int:
    """Return K: the maximum number of sequences in a row of the batch."""
    return batch["cls_positions"].shape[1] if "cls_positions" in batch else 1
