"""DistilBERT as published (Sanh et al. 2019, arXiv 1910.01108; huggingface examples/distillation), on a 4x4 slice.

    plmjax compress distil BERT --output OUTPUT --method distilbert --experiment distilbert_4x4 --data.input TEXT
    plmjax plan experiments/distilbert_4x4.py --topology v3:4x4

BERT is the run directory of a BERT-Base, such as an imported one. Its student begins with the layers 0, 2, 4, 7, 9 and
11, and learns beside it: 5 x divergence at temperature 2, over all tokens; 2 x masked language model; 1 x cosine
distance of the last hidden states.

Recipe: AdamW (0.9, 0.98, epsilon 1e-6) at 5e-4 without decay, warm-up of 5 %, linear decay, gradients clipped at 5,
dropout 0.1, positions frozen; 4,000 rows a batch, the paper's largest; rare tokens are hidden more often. The user
provides the text; the paper used English Wikipedia and BooksCorpus, for three epochs: 25,000 steps of 512,000 tokens.

Plan for v3:4x4 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 416 ms (365 to 375 refined, roofline 171
ms), MFU 39 % (44 to 45 refined), 10.4 GiB of the 16 of a core, of which the teacher takes 0.4; 2.9 hours and 46
chip-hours for the whole run. The plan finds an array over the vocabulary: the scores of all tokens, whose distributions
the released command compares. `--compression.restrict True` compares those of masked tokens alone and has no such
array: 263 ms (236 to 241 refined, roofline 121 ms), MFU 46 %, 4.2 GiB; 1.8 hours and 29 chip-hours. The paper trained
for about 90 hours on 8 V100.

Result to expect: 77.0 on GLUE's development sets, of BERT-Base's 79.5 (table 1 of the paper). This run was planned, but
not made.

Deviation: rows are filled with sentences up to 128 tokens; the released code has a row for each line of its file.
"""

import dataclasses

from plmjax.compression.distillation.distilbert import DistilBertDistillation
from plmjax.compression.distillation.students import TakenLayers
from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.bert import BertConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.objectives.distilbert import DistilBertPretraining
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear

LAYERS = (0, 2, 4, 7, 9, 11)
"""Layers of BERT-Base with which the student begins (scripts/extract_distilbert.py)."""


def experiment() -> Experiment:
    """Six layers of BERT-Base beside its twelve."""
    student = DistilBertConfig.base()
    return Experiment(
        model=student,
        objective=DistilBertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=FullSentences(), held_out=0.005, sequence_length=128),
        optimizer=AdamW(
            learning_rate=5e-4,
            schedule=Linear(warmup_steps=1250),
            beta2=0.98,
            epsilon=1e-6,
            weight_decay=0.0,
            clip_norm=5.0,
            frozen=("distilbert/embeddings/position_embeddings",),
        ),
        training=Training(steps=25_000, batch_size=4000, log_every=50, evaluate_every=1000, evaluation_batches=20),
        checkpoint=Checkpoint(every=2500),
        weight_mapping=TakenLayers(LAYERS, student),
        compression=DistilBertDistillation(teacher=BertConfig.base()),
    )


def tiny() -> Experiment:
    """The same losses for any teacher, whose sizes the command sets, on a laptop: 1,000 steps of 1,024 tokens."""
    run = experiment()
    return dataclasses.replace(
        run,
        model=None,
        data=dataclasses.replace(run.data, format="documentation", sequence_length=32, held_out=0.05),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=1e-3, schedule=Linear(warmup_steps=50), frozen=()),
        training=dataclasses.replace(
            run.training, steps=1000, batch_size=32, evaluate_every=500, evaluation_batches=50
        ),
        checkpoint=Checkpoint(every=500, keep=2),
        weight_mapping=TakenLayers(),
        compression=DistilBertDistillation(teacher=BertConfig.tiny()),
    )
