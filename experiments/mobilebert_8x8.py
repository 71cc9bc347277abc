"""MobileBERT as published (Sun et al., ACL 2020, arXiv 2004.02984; google-research/mobilebert), on an 8x8 slice.

    plmjax compress distil IB_BERT --output LAYERS --method mobilebert --student random --experiment mobilebert_8x8
    plmjax compress distil IB_BERT --output OUTPUT --method mobilebert --student LAYERS \
        --experiment mobilebert_8x8:prediction
    plmjax plan experiments/mobilebert_8x8.py --topology v3:8x8

IB_BERT is the run directory of an IB-BERT-Large. Its student learns the 24 layers one by one, each for 10,000 steps.
Then it learns for 500,000 steps to predict hidden tokens and the next sentence; half of the tokens' loss comes from the
teacher.

Recipe: LAMB at 1.5e-3, warm-up of 10,000 steps, linear decay, 2,048 rows of 512 tokens; the factors of the released
command. The user provides the text; the paper used English Wikipedia and BooksCorpus, and 256 TPU v3 chips.

Result to expect: 77.7 on GLUE's test sets (table 4 of the paper). This run was not made.

Deviation: the published transfer has other learning rates for layers; plmjax/compression/distillation/mobilebert.py.
"""

import dataclasses

from plmjax.compression.distillation.mobilebert import MobileBertDistillation
from plmjax.compression.distillation.students import RandomStudent
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Start, Tokenizer, Training
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training.optimizers import Lamb
from plmjax.training.optimizers.schedules import Linear

TEACHER = MobileBertConfig.ib_bert_large()


def experiment() -> Experiment:
    """The transfer of 24 layers, 240,000 steps."""
    student = MobileBertConfig.base()
    return Experiment(
        model=student,
        objective=BertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=SentencePairs(), held_out=0.005, sequence_length=512),
        optimizer=Lamb(learning_rate=1.5e-3, schedule=Linear(warmup_steps=10_000)),
        training=Training(steps=240_000, batch_size=2048, log_every=100, evaluate_every=10_000, evaluation_batches=20),
        checkpoint=Checkpoint(every=10_000),
        start=RandomStudent(student),
        compression=MobileBertDistillation(teacher=TEACHER),
    )


def prediction() -> Experiment:
    """The training of the whole model, 500,000 steps."""
    run = experiment()
    return dataclasses.replace(
        run,
        training=dataclasses.replace(run.training, steps=500_000),
        start=Start(),
        compression=MobileBertDistillation(teacher=TEACHER, stage="prediction", hard=0.5),
    )
