"""Continued pretraining of an existing model on text of another kind (Gururangan et al., arXiv 2004.10964).

    plmjax import bert-base-uncased/ runs/imported
    plmjax pretrain experiments/continued.py --from runs/imported --workdir runs/domain --data.input my_text/

The model, its parameters and its tokenizer are the checkpoint's: one of plmjax, or one that `plmjax import` has read.
The optimizer is new and begins at step 0. `:roberta` continues a RoBERTa, or any other masked language model whose
pretraining has no sentence pairs.

Twelve million tokens, in a thousand steps at a fifth of the published rate, suit a text of a few megabytes. With more
text, raise `training.steps` and `training.batch_size`.
"""

import dataclasses

from plmjax.data.layouts import FullSentences, SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Training
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.optimizers import AdamW
from plmjax.training.schedules import Linear


def experiment() -> Experiment:
    """A BERT: masked tokens and sentence pairs, a thousand steps of 96 rows of 128 tokens."""
    return Experiment(
        model=None,
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=128, held_out=0.05),
        optimizer=AdamW(learning_rate=2e-5, schedule=Linear(warmup_steps=100)),
        training=Training(steps=1000, batch_size=96, log_every=50, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=250, keep=2, best="eval/loss"),
    )


def roberta() -> Experiment:
    """A RoBERTa: masked tokens of full sentences."""
    run = experiment()
    return dataclasses.replace(
        run, objective=RobertaPretraining(), data=dataclasses.replace(run.data, layout=FullSentences())
    )
