"""NNLM on text that every machine has: the documentation of its Python libraries.

plmjax pretrain experiments/nnlm_tiny.py
plmjax pretrain experiments/nnlm_tiny.py:direct
plmjax nearest runs/nnlm_tiny array
"""

import dataclasses

from plmjax.data.layouts import Blocks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.nnlm import NnlmConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.schedules import InverseTime


def experiment() -> Experiment:
    """4,096 words, four before each one: 30 numbers a word and 100 hidden units, 10,000 steps of 250 predictions."""
    model = NnlmConfig.brown(vocab_size=4096)
    return Experiment(
        model=model,
        objective=NextToken(),
        tokenizer=Tokenizer(kind="word", vocab_size=4096),
        # Each row repeats the words that its first prediction is made from.
        data=Data(layout=Blocks(overlap=model.order - 2), format="documentation", sequence_length=128, held_out=0.05),
        optimizer=StochasticGradientDescent(
            learning_rate=3.0,
            schedule=InverseTime(decay=1e-3),
            weight_decay=1e-5,
            decay_exclude=("bias",),
            clip_norm=0.0,
        ),
        training=Training(steps=10_000, batch_size=2, log_every=500, evaluate_every=2500, evaluation_batch_size=16),
        checkpoint=Checkpoint(every=2500, keep=2),
    )


def direct() -> Experiment:
    """With direct connections from the vectors to the scores."""
    run = experiment()
    return dataclasses.replace(run, model=dataclasses.replace(run.model, direct_connections=True))
