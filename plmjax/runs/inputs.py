"""The inputs of a run that `pretrain` and `finetune` pass to the loop."""

import dataclasses
from typing import Any

from plmjax.experiment import Experiment
from plmjax.training.evaluation import Evaluation
from plmjax.training.feed import BatchSource


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a run.

    experiment: the experiment, with the labels and the numbers of steps that follow from the files of a task.
    params: first parameters from a checkpoint, a tree of host arrays, with rows for special tokens that were added to
    the
        tokenizer; None without a checkpoint.
    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    evaluation: None evaluates on all held-out rows of the source.
    """

    experiment: Experiment
    params: Any
    tokenizer: Any
    source: BatchSource
    evaluation: Evaluation | None
