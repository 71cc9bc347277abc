"""The pretraining task of Longformer's language model: the next character of rows without a memory.

Beltagy et al. 2020 (arXiv 2004.05150, section 4.2). The published evaluation reads rows of 32,256 characters, each 512
further than the one before, and scores the last 512 of each: `plmjax evaluate RUN --window 32256 --stride 512`.
"""

import dataclasses

import jax

from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import Batch


@dataclasses.dataclass(frozen=True)
class LongformerDecoderPretraining(NextToken):
    """Mean nats of the next token, for a model that reads distances instead of positions."""

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {"input_ids": batch["input_ids"], "attention_mask": batch["segment_ids"] > 0}
