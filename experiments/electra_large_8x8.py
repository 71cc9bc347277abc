"""ELECTRA-Large as published (Clark et al., arXiv 2003.10555, table 6), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/electra_large_8x8.py --data.input TEXT
    plmjax plan experiments/electra_large_8x8.py --topology v3:8x8

Recipe: batch 2,048 of length 512, 400,000 steps (`:longest` 1,750,000); BERT's AdamW at 2e-4, a warm-up of 10,000 steps
that multiplies the linear decay; weight decay 0.01; dropout 0.1; a generator a quarter as wide; it predicts 25 % of the
tokens, and the discriminator classifies every token, with 50 times the weight. The user provides the text; the paper
used XLNet's, 33 billion words of Wikipedia, books, ClueWeb, CommonCrawl and Gigaword.

Plan for v3:8x8 (libtpu 0.0.52, jax 0.10.2), in four microbatches, estimated, not measured: a step of 855 ms (683 to 741
refined, roofline 406 ms), MFU 34 % (39 to 42 refined), 4.5 GiB of the 16 of a core; 95.0 hours and 6,077 chip-hours for
400,000 steps.

Result to expect: 90.9 % on MNLI's matched development set for the longest run, the median of the release's ten
fine-tuning runs (its README). This run was planned, but not made.

Deviations from the released code: as in electra_small.
"""

import dataclasses

from plmjax.data.layouts import SingleSegment
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.electra import ElectraConfig
from plmjax.objectives.electra import ElectraPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import LinearTimesWarmup


def experiment() -> Experiment:
    """355 million parameters, both networks together, on 64 chips."""
    return Experiment(
        model=ElectraConfig.large(),
        objective=ElectraPretraining(rate=0.25),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=SingleSegment(), sequence_length=512, held_out=0.005),
        optimizer=BertAdamW(learning_rate=2e-4, schedule=LinearTimesWarmup(warmup_steps=10_000)),
        training=Training(
            steps=400_000,
            batch_size=2048,
            accumulation=4,
            log_every=100,
            evaluate_every=10_000,
            evaluation_batches=20,
        ),
        checkpoint=Checkpoint(every=20_000),
    )


def longest() -> Experiment:
    """The run that the released model comes from."""
    run = experiment()
    return dataclasses.replace(run, training=dataclasses.replace(run.training, steps=1_750_000))
