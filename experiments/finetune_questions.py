"""Extractive question answering: SQuAD 1.1 and 2.0, CMRC 2018, and any file of their form.

plmjax finetune experiments/finetune_questions.py --from runs/bert --data.train train-v1.1.json \
    --data.validation dev-v1.1.json --workdir runs/squad

predictions.json (and, of SQuAD 2.0, null_odds.json) are what the official scripts read. Short windows share rows of 384
tokens: SQuAD's have 200 tokens on average, so that 16 rows hold some 30 of them and 24 rows some 46.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.questions import Questions, SpanExtraction
from plmjax.training.optimizers import BertAdamW


def experiment() -> Experiment:
    """Any file of SQuAD's form, as SQuAD 1.1: three epochs of 32 windows a step at 5e-5 (Devlin et al. 2019, 4.2)."""
    return Experiment(
        model=None,
        objective=SpanExtraction(),
        data=Questions(sequence_length=384, stride=128, pack=4),
        optimizer=BertAdamW(learning_rate=5e-5),
        training=Training(steps=0, batch_size=16, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.1, evaluations=1.0),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/f1", prefer="best"),
    )


def squad() -> Experiment:
    """SQuAD 1.1."""
    return experiment()


def squad_v2() -> Experiment:
    """SQuAD 2.0, with unanswerable questions: two epochs of 48 windows a step (section 4.3).

    The best epoch has the best F1 over all thresholds. Give the threshold of this F1 to plmjax predict as
    `--objective.null_threshold`.
    """
    run = experiment()
    return dataclasses.replace(
        run,
        objective=SpanExtraction(impossible=True),
        training=dataclasses.replace(run.training, batch_size=24),
        finetuning=dataclasses.replace(run.finetuning, epochs=2.0),
        checkpoint=dataclasses.replace(run.checkpoint, best="-eval/best_f1"),
    )


def cmrc() -> Experiment:
    """CMRC 2018 in Chinese, with rows of 512 tokens, two epochs of 32 windows a step at 3e-5."""
    run = experiment()
    return dataclasses.replace(
        run,
        objective=SpanExtraction(language="zh"),
        data=dataclasses.replace(run.data, sequence_length=512),
        optimizer=BertAdamW(learning_rate=3e-5),
        training=dataclasses.replace(run.training, batch_size=32),
        finetuning=dataclasses.replace(run.finetuning, epochs=2.0),
    )
