"""The inputs of a run that `pretrain` and `finetune` pass to the training loop."""

import dataclasses
from typing import Any

from plmjax.experiment import Experiment
from plmjax.training.evaluation import Evaluation
from plmjax.training.feed import BatchSource


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a run.

    experiment: the experiment. For a task it has the labels and numbers of steps that follow from its files.
    params: initial parameters from a checkpoint, a tree of host arrays, with rows for special tokens that were added to
        the tokenizer; None without a checkpoint.
    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    source: the batches.
    evaluation: the evaluation; None for the loss on all held-out rows of the source.
    """

    experiment: Experiment
    params: Any
    tokenizer: Any
    source: BatchSource
    evaluation: Evaluation | None
