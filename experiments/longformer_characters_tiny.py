"""Longformer's language model of characters for a laptop, on the documentation of the Python libraries, by bytes.

    plmjax pretrain experiments/longformer_characters_tiny.py --workdir runs/stage_1
    plmjax pretrain experiments/longformer_characters_tiny.py:stage_2 --from runs/stage_1 --workdir runs/stage_2

Result of the first stage: held-out loss 1.95, 1.72, 1.62 and 1.59 nats a byte after 250, 500, 750 and 1,000 steps,
unigram entropy of the same bytes 3.14. After the second stage the loss is 1.41 nats a byte in rows twice as long,
unigram entropy 3.13. Three minutes of processor time together, preparation included.

As published except for the size: windows that grow from layer to layer, two dilated heads in the upper one, norms
before the sublayers, GELU, AdamW with a constant rate after the warm-up. The second stage has windows and rows twice as
long and half the rate.

Deviation: there is no dropout, as in gpt2_tiny, and the learning rate was chosen for this model.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.longformer.decoder import LongformerDecoderConfig
from plmjax.objectives.longformer import LongformerDecoderPretraining
from plmjax.runs.weight_mappings.longformer import WiderWindows
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Constant


def experiment() -> Experiment:
    """Two layers of width 128 with windows of 16 and 32 bytes, 1,000 steps of 8 rows of 128 bytes."""
    return Experiment(
        model=LongformerDecoderConfig.tiny(vocab_size=257, init_std=0.05),
        objective=LongformerDecoderPretraining(),
        tokenizer=Tokenizer(kind="gpt2-bpe", vocab_size=257),
        data=Data(layout=Chunks(), format="documentation", sequence_length=128, held_out=0.05),
        optimizer=AdamW(
            learning_rate=2e-3,
            schedule=Constant(warmup_steps=100),
            weight_decay=0.01,
            epsilon=1e-8,
            clip_norm=0.25,
            decay_exclude=(),
        ),
        training=Training(steps=1000, batch_size=8, log_every=50, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )


def stage_2() -> Experiment:
    """Windows of 32 and 64 bytes, 250 steps of 8 rows of 256 bytes at half the rate."""
    run = experiment()
    return dataclasses.replace(
        run,
        model=run.model.widen(2),
        data=dataclasses.replace(run.data, sequence_length=256),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=1e-3, schedule=Constant(warmup_steps=25)),
        training=dataclasses.replace(run.training, steps=250),
        weight_mapping=WiderWindows(),
    )
