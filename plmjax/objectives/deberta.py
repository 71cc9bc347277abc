"""DeBERTa-v3's pretraining objective: replaced token detection.

He et al., ICLR 2023, arXiv 2111.09543; microsoft/DeBERTa apps/tasks/rtd_task.py.

    loss = mean nats of the masked tokens + discriminator_weight x mean nats of every token's label

This is ELECTRA's objective (plmjax/objectives/electra.py) with three differences: each token is chosen at most once,
every chosen token becomes [MASK], and no gradient of the discriminator's loss reaches the generator's embedding table.
The batch has the fields of the masked language model, and:

    original_ids       int32 [B T]     the tokens before masking
    sampling_keys      uint32 [B 2]    keys of the noise that sampling adds to the logits

Deviation: the released code updates the generator before the discriminator reads its table, with a rate, a clipping and
an optimizer for each network. Here both are updated in one step, so that the discriminator reads the table from before
this update.
Deviation: of n tokens round(rate n) are chosen, anywhere in the sequence. The released code takes one of every six
tokens until it has this number, and never one of the last 48 tokens of a row of 512.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, check_ranges
from plmjax.models.deberta.pretraining import DebertaGeneratorForMaskedLM
from plmjax.objectives.electra import two_network_sums
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Batch, LossInputs, LossSums


@dataclasses.dataclass(frozen=True)
class DebertaPretraining(MaskedLanguageModel):
    """Training of a generator, and of the discriminator on the generator's samples, in one step."""

    mask_fraction: float = 1.0
    """Share of the predicted tokens that are replaced by [MASK]."""
    random_fraction: float = 0.0
    """Share of the predicted tokens that are replaced by a token drawn from the whole vocabulary."""
    discriminator_weight: float = 50.0
    """Factor of the loss of replaced token detection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("objective", self, discriminator_weight=FROM_0)

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.PRETRAINING, execution)

    def module_for_masks(self, config: Any, execution: Execution) -> nn.Module:
        return DebertaGeneratorForMaskedLM(config, execution)

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Choose positions and replace their tokens, as the masked language model does."""
        masking, sampling = jax.random.split(key)
        keys = jax.random.key_data(jax.random.split(sampling, len(batch["input_ids"])))
        original = {"original_ids": batch["input_ids"], "sampling_keys": keys}
        return super().corrupt(batch, masking, vocabulary, constants) | original

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the inputs of both networks. Rows of one sequence need no positions of [CLS], their first token."""
        packed = "cls_positions" in batch and batch["cls_positions"].shape[1] > 1
        starts = {"cls_positions": batch["cls_positions"]} if packed else {}
        return super().model_inputs(batch) | starts

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of predictions, and of tokens other than padding."""
        tokens = jnp.sum(batch["segment_ids"] > 0).astype(jnp.float32)
        return super().weights(batch) | {"rtd": tokens + 1e-5}

    def coefficients(self) -> dict[str, float]:
        return {"rtd": self.discriminator_weight}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        return two_network_sums(self, module, loss_inputs, batch=batch, key=key, training=training)

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of the generator with P predictions a row and the discriminator.

        The mask decoder applies the last layer once more. The discriminator's head has 6 (D^2 + D) a token.
        """
        rows, length = batch["input_ids"].shape
        generator, head = config.generator, config.width**2 + config.width
        applied = generator.with_depth(generator.depth + (not config.position_biased_input))
        first = applied.train_flops(rows, length, self.predictions(batch))
        return first + config.train_flops(rows, length, 0) + 6.0 * rows * length * head
