"""Transformer-XL's training objective: the next token, with a memory that is carried from row to row.

Dai et al. (ACL 2019, arXiv 1901.02860); kimiyoung/transformer-xl pytorch/train.py and eval.py. Rows are such as
`ContiguousStreams` gives. No gradient passes from one row to the row before it.

An evaluation may read shorter rows (`--training.evaluation_sequence_length`) and remember more tokens than training.
The published evaluations read rows of 80 characters and remember 2,100; in training, both numbers are 512.
"""

import dataclasses
from typing import Any, Self

import jax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, check_choice, check_ranges
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.objectives.capabilities import DOCUMENTS, Remembers, check_memory
from plmjax.objectives.objective import Batch, ConstantSources
from plmjax.objectives.segment_recurrence import SegmentRecurrence


@dataclasses.dataclass(frozen=True)
class TransformerXlPretraining(Remembers, SegmentRecurrence):
    """Mean nats of each token given the tokens before it in its row and in the memory."""

    documents: str = "joined"
    """joined: the memory goes on from one document to the next, as in the released code; apart: it begins anew."""
    evaluation_mem_len: int | None = None
    """Number of tokens remembered in an evaluation; by default as many as in training (--model.mem_len)."""
    evaluation_clamp_len: int | None = None
    """Largest distance that is distinguished in an evaluation; --model.clamp_len by default."""
    evaluation_same_length: bool | None = None
    """True if every token of an evaluation sees equally many tokens; --model.same_length by default."""

    def __post_init__(self) -> None:
        check_choice("--objective.documents", self.documents, DOCUMENTS)
        if self.evaluation_mem_len is not None:
            check_ranges("objective", self, evaluation_mem_len=FROM_0)

    def with_memory(self, tokens: int) -> Self:
        return dataclasses.replace(self, evaluation_mem_len=tokens)

    def constants(self, config: TransformerXlConfig, sources: ConstantSources) -> tuple[()]:
        """Return no constants.

        Raises:
            UserError: the training text is shorter than a memory.
        """
        check_memory(config.mem_len, "model.mem_len", sources)
        check_memory(self.evaluation_mem_len or 0, "objective.evaluation_mem_len", sources)
        return ()

    def evaluation_config(self, config: TransformerXlConfig) -> TransformerXlConfig:
        names = ("mem_len", "clamp_len", "same_length")
        own = {name: getattr(self, f"evaluation_{name}") for name in names}
        return dataclasses.replace(config, **{name: value for name, value in own.items() if value is not None})

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the first positions of documents, if documents are separate.

        A document begins with the end token before it, which predicts its first token.
        """
        if self.documents == "joined":
            return batch
        return batch | {"starts": batch["input_ids"] == vocabulary.document_end}
