"""AWD-LSTM as published (Merity et al. 2018, section 5): on WikiText-2, and on the Penn Treebank.

    plmjax pretrain experiments/awd_lstm_wikitext2.py --data.input wikitext-2
    plmjax pretrain experiments/awd_lstm_wikitext2.py:penn_treebank --data.input ptb.train.txt
    plmjax evaluate runs/awd_lstm_wikitext2 --data wikitext-2 --data.format wikitext-2 --split test
    plmjax plan experiments/awd_lstm_wikitext2.py --topology v3:2x2

Plan for v3:2x2 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 30 ms (23 to 28 refined, roofline 15.1
ms), MFU 10 % (11 to 13 refined), 0.4 GiB of the 16 of a core; 2.3 hours and 9 chip-hours for the whole run.

The released commands have a dropout of 0.2 and 0.25 between the layers, the paper 0.3. They reach a perplexity of 68.7
on held-out words and of 65.6 on the test set of WikiText-2, 61.2 and 58.8 on the Penn Treebank (README of
salesforce/awd-lstm-lm). Not trained here.
"""

import dataclasses

from plmjax.data.layouts import Windows
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.training.optimizers import StochasticGradientDescent

WORDS_A_STEP = 80 * 70


def experiment() -> Experiment:
    """WikiText-2: 750 epochs of 2,088,628 words, 80 windows of 70 of them a step; evaluated after every epoch."""
    model = AwdLstmConfig.wikitext2()
    epoch = 2_088_628 // WORDS_A_STEP
    return Experiment(
        model=model,
        objective=AwdLstmPretraining(documents="joined"),
        tokenizer=Tokenizer(kind="whitespace", vocab_size=model.vocab_size),
        data=Data(layout=Windows(overlap=20), format="wikitext-2", sequence_length=90),
        optimizer=StochasticGradientDescent(
            learning_rate=30.0, clip_norm=0.25, weight_decay=1.2e-6, averaging="non-monotone", patience=5
        ),
        training=Training(steps=750 * epoch, batch_size=80, log_every=100, evaluate_every=epoch, evaluation_batches=0),
        checkpoint=Checkpoint(every=10 * epoch, keep=2, best="eval/loss"),
    )


def penn_treebank() -> Experiment:
    """The Penn Treebank: 750 epochs of 929,589 words, 40 windows a step."""
    run, epoch = experiment(), 929_589 // (40 * 70)
    training = {"steps": 750 * epoch, "batch_size": 40, "evaluate_every": epoch}
    return dataclasses.replace(
        run,
        model=AwdLstmConfig.penn_treebank(),
        tokenizer=dataclasses.replace(run.tokenizer, vocab_size=10_000),
        data=dataclasses.replace(run.data, format="lines"),
        training=dataclasses.replace(run.training, **training),
        checkpoint=dataclasses.replace(run.checkpoint, every=10 * epoch),
    )
