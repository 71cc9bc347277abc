"""Longformer as published (Beltagy et al. 2020, arXiv 2004.05150, section 5), on an 8x8 slice of 64 chips.

    plmjax import roberta-base/ runs/roberta
    plmjax pretrain experiments/longformer_base_8x8.py --from runs/roberta --data.input BOOKS WIKIPEDIA NEWS STORIES
    plmjax plan experiments/longformer_base_8x8.py --topology v5e:8x8

Recipe: a RoBERTa whose 512 positions are repeated eight times; 65,000 steps of 64 rows of 4,096 tokens, windows of 512,
no global tokens; Adam (0.9, 0.98, 1e-6) at 3e-5 with 500 steps of warm-up, then polynomial decay of power 3; weight
decay 0.01. The user provides the text: long documents of books and Wikipedia, news, and stories.

Plan for v5e:8x8 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 128 ms (45 to 52 refined, roofline 13.9
ms), MFU 10 % (24 to 28 refined), 2.1 GiB of the 16 of a device, a row on each; 2.3 hours and 148 chip-hours for the
whole run.

Result to expect: 1.705 bits per masked token after the run, 1.846 before its first step; Large 1.358 and 1.496 (table
5). These runs were not made.

Deviations from the released code: as those of roberta_base_8x8; the recipe's dropout, weight decay of all parameters
and beta2 are RoBERTa's, since the paper names no others.
"""

import dataclasses

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.runs.weight_mappings.longformer import LongformerFromRoberta
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Polynomial


def experiment() -> Experiment:
    """149 million parameters on 64 chips, 262,144 tokens a step."""
    return Experiment(
        model=LongformerConfig.base(),
        objective=RobertaPretraining(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=50265, lowercase=False),
        data=Data(layout=FullSentences(), sequence_length=4096, held_out=0.005),
        optimizer=AdamW(
            learning_rate=3e-5,
            schedule=Polynomial(warmup_steps=500, power=3.0),
            beta2=0.98,
            epsilon=1e-6,
            weight_decay=0.01,
            clip_norm=0.0,
            decay_exclude=(),
        ),
        training=Training(
            steps=65_000,
            batch_size=64,
            log_every=100,
            evaluate_every=5_000,
            evaluation_batches=10,
        ),
        weight_mapping=LongformerFromRoberta(),
        checkpoint=Checkpoint(every=2_500),
    )


def large() -> Experiment:
    """435 million parameters."""
    return dataclasses.replace(experiment(), model=LongformerConfig.large())
