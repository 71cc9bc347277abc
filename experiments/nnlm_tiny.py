"""NNLM on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/nnlm_tiny.py
    plmjax pretrain experiments/nnlm_tiny.py:direct
    plmjax nearest runs/nnlm_tiny array
    python benchmarks/ngrams.py runs/nnlm_tiny

Result: held-out loss 4.58 nats per word after 10,000 steps (4.79, 4.67 and 4.61 after 2,500, 5,000 and 7,500), unigram
entropy of the same words 5.94: a margin of 1.36 nats, a perplexity of 97.4. Interpolated n-grams of the same million
tokens have 110.3, 70.1, 60.9 and 57.3 from two tokens to five: the text is so repetitive that long n-grams are best. In
equal mixtures with the model they have 87.2, 63.3, 56.2 and 53.8, always lower, as in the paper. The run was made on
one device (`--mesh.data 1`), in about five minutes of one core of an AMD EPYC.

As published except for the size: the four words before each one, a rate that decays with the inverse of the step,
weight decay for all parameters except the biases (1e-5, that of Associated Press news).

Deviation: a step takes the mean gradient of 256 words, not that of one word, so the published rate of 0.001 would be
0.26. It starts at 3 and decays sooner, for two and a half passes over the text instead of ten or more.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.nnlm import NnlmConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import InverseTime


def experiment() -> Experiment:
    """The four words before each, 4,096 words, embedding size 30, 100 hidden units, 10,000 steps of 256 predictions."""
    model = NnlmConfig.brown(vocab_size=4096)
    return Experiment(
        model=model,
        objective=NextToken(),
        tokenizer=Tokenizer(kind="word", vocab_size=4096),
        # Each row repeats the words that its first prediction is made from.
        data=Data(layout=Chunks(overlap=model.order - 2), format="documentation", sequence_length=35, held_out=0.05),
        optimizer=StochasticGradientDescent(
            learning_rate=3.0,
            schedule=InverseTime(decay=1e-3),
            weight_decay=1e-5,
            decay_exclude=("bias",),
            clip_norm=0.0,
        ),
        training=Training(steps=10_000, batch_size=8, log_every=500, evaluate_every=2500, evaluation_batch_size=16),
        checkpoint=Checkpoint(every=2500, keep=2),
    )


def direct() -> Experiment:
    """With direct connections from the vectors to the scores."""
    run = experiment()
    return dataclasses.replace(run, model=dataclasses.replace(run.model, direct_connections=True))
