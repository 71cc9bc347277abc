"""Multiple choice of endings or answers, from any tsv, csv or jsonl file; SWAG (Zellers et al. 2018).

plmjax finetune experiments/finetune_choices.py --from runs/bert --data.train train.jsonl --data.validation dev.jsonl \
    --data.context question --data.choices options --data.label answer --workdir runs/choices

plmjax finetune experiments/finetune_choices.py:swag --from runs/bert --data.train train.csv \
    --data.validation val.csv --workdir runs/swag

Up to two questions share a row of 64 tokens for each choice, so that a step of 8 rows has at most 16 questions.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.training.optimizers import BertAdamW


def experiment() -> Experiment:
    """Three epochs of 16 questions a step at 2e-5 (Devlin et al. 2019, section 4.4)."""
    return Experiment(
        model=None,
        objective=MultipleChoice(),
        data=Choices(sequence_length=64, pack=2),
        optimizer=BertAdamW(learning_rate=2e-5),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def swag() -> Experiment:
    """The continuation of a described scene: the start of the second sentence precedes each of four endings."""
    run = experiment()
    endings = ("ending0", "ending1", "ending2", "ending3")
    return dataclasses.replace(
        run, data=dataclasses.replace(run.data, context="sent1", question="sent2", choices=endings, label="label")
    )
