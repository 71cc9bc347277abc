"""Reformer on enwik8 as published (Kitaev et al. 2020; trax/supervised/configs/reformer_enwik8.gin of google/trax).

    plmjax pretrain experiments/reformer_2x4.py --data.input enwik8
    plmjax plan experiments/reformer_2x4.py --topology v5e:2x4

Recipe: 100,000 steps of 8 rows of 65,536 bytes, one on each device; Adam with beta2 0.98, 2,000 steps of warm-up to
7e-4, then the inverse square root; dropout 0.2. Local layers have chunks of 128 bytes, every fourth layer hashes into
512 buckets twice, with chunks of 256. The base size is the one that the file has for devices of 16 GB, `large` the one
that it names for larger devices, and that of the released checkpoint.

Plan for v5e:2x4 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 1,299 ms (816 to 857 refined, roofline
541 ms), MFU 9 % (14 to 15 refined), 8.9 GiB of the 16 of a device, a row on each; 36.1 hours and 289 chip-hours for the
whole run.

Result to expect: 1.05 bits a byte on the test file with 12 layers of 1,024 (section 5.3). The run was not made.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import InverseSquareRoot


def experiment() -> Experiment:
    """12 layers of 768."""
    return Experiment(
        model=ReformerConfig.enwik8_base(eos_token_id=None),
        objective=NextToken(),
        tokenizer=Tokenizer(kind="byte", vocab_size=258),
        data=Data(layout=Chunks(), format="enwik8", sequence_length=65_536),
        optimizer=AdamW(
            learning_rate=7e-4,
            schedule=InverseSquareRoot(warmup_steps=2_000),
            beta2=0.98,
            epsilon=1e-9,
            weight_decay=0.0,
            clip_norm=0.0,
        ),
        training=Training(steps=100_000, batch_size=8, log_every=100, evaluate_every=5_000, evaluation_batches=8),
        checkpoint=Checkpoint(every=5_000, keep=2, best="eval/loss"),
    )


def large() -> Experiment:
    """12 layers of 1,024, with heads of 128."""
    return dataclasses.replace(experiment(), model=ReformerConfig.enwik8(eos_token_id=None))
