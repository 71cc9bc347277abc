"""MobileBERT as published (Sun et al., ACL 2020, arXiv 2004.02984; google-research/mobilebert), on an 8x8 slice.

    plmjax compress distil IB_BERT --output LAYERS --method mobilebert --experiment mobilebert_8x8
    plmjax compress distil IB_BERT --output OUTPUT --method mobilebert --student LAYERS \
        --experiment mobilebert_8x8:prediction
    plmjax plan experiments/mobilebert_8x8.py --topology v3:8x8

IB_BERT is the run directory of an IB-BERT-Large. Its student has its embeddings and heads, and learns the 24 layers one
by one, each for 10,000 steps. Then it learns for 500,000 steps to predict masked tokens and the next sentence; half of
the tokens' loss comes from the teacher.

Recipe: LAMB at 1.5e-3, 2,048 rows of 512 tokens, the factors of the released command. The rate of a layer rises for
1,000 steps to 3 times 1.5e-3; that of the layers below it is a tenth of it. The whole model has a warm-up of 10,000
steps and linear decay. The student has no dropout, as in the released code. The user provides the text; the paper used
English Wikipedia and BooksCorpus, and 256 TPU v3 chips.

Plan of the transfer for v3:8x8 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 281 ms (216 to 232
refined, roofline 123 ms), MFU 37 % (44 to 48 refined), 5.5 GiB of the 16 of a core, of which the teacher takes 1.1;
18.7 hours and 1,197 chip-hours for the 240,000 steps.

Result to expect: 77.7 on GLUE's test sets (table 4 of the paper). This run was planned, but not made.
"""

import dataclasses

from plmjax.compression.distillation.mobilebert import MobileBertDistillation
from plmjax.compression.distillation.students import RandomLayers
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training, WeightMapping
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training.optimizers import BertAdamW, Lamb
from plmjax.training.optimizers.schedules import Constant, Linear

TEACHER = MobileBertConfig.ib_bert_large()


def experiment() -> Experiment:
    """The transfer of 24 layers, 240,000 steps."""
    student = MobileBertConfig.base(attention_probs_dropout_prob=0.0)
    return Experiment(
        model=student,
        objective=BertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=SentencePairs(), held_out=0.005, sequence_length=512),
        optimizer=Lamb(learning_rate=1.5e-3, schedule=Constant()),
        training=Training(steps=240_000, batch_size=2048, log_every=100, evaluate_every=10_000, evaluation_batches=20),
        checkpoint=Checkpoint(every=10_000),
        weight_mapping=RandomLayers(student),
        compression=MobileBertDistillation(teacher=TEACHER),
    )


def prediction() -> Experiment:
    """The training of the whole model, 500,000 steps."""
    run = experiment()
    return dataclasses.replace(
        run,
        optimizer=dataclasses.replace(run.optimizer, schedule=Linear(warmup_steps=10_000)),
        training=dataclasses.replace(run.training, steps=500_000),
        weight_mapping=WeightMapping(),
        compression=MobileBertDistillation(teacher=TEACHER, stage="prediction", hard=0.5),
    )


def tiny() -> Experiment:
    """The transfer of two layers of experiments/mobilebert_tiny.py:teacher on a laptop, 500 steps for each."""
    run = experiment()
    sizes = {"vocab_size": 4096, "max_position_embeddings": 128, "initializer_range": 0.05}
    student = MobileBertConfig.mini(**sizes, attention_probs_dropout_prob=0.0)
    return dataclasses.replace(
        run,
        model=student,
        data=dataclasses.replace(run.data, format="documentation", sequence_length=32, held_out=0.05),
        optimizer=BertAdamW(learning_rate=1e-3, schedule=Constant()),
        training=dataclasses.replace(
            run.training, steps=1000, batch_size=32, evaluate_every=500, evaluation_batches=50
        ),
        checkpoint=Checkpoint(every=500, keep=2),
        weight_mapping=RandomLayers(student),
        compression=MobileBertDistillation(teacher=MobileBertConfig.ib_bert_mini(**sizes), steps_per_layer=500),
    )
