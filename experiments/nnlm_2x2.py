"""NNLM as published for Associated Press news (Bengio et al., JMLR 2003, table 2), on a 2x2 slice.

    plmjax pretrain experiments/nnlm_2x2.py --data.input NEWS
    plmjax plan experiments/nnlm_2x2.py --topology v3:2x2

Plan for v3:2x2 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 3.6 ms (3.1 to 3.3 refined, roofline 1.7
ms), 0.2 GiB of the 16 of a core; the run is half a minute. Result to expect: a perplexity of 109, mixed with a trigram.
This run was planned, but not made: the published text is not free.

Deviation: the paper takes one word after the other, five times 14 million; a step here takes the mean gradient of 8,192
words, and starts with the rate of experiments/nnlm_tiny.py. The published rate of 0.001 per word would be 8.2.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.nnlm import NnlmConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import InverseTime


def experiment() -> Experiment:
    """The five words before each word, 17,964 words: embedding size 100, 60 hidden units, direct connections."""
    model, words = NnlmConfig.ap_news(), 8192
    return Experiment(
        model=model,
        objective=NextToken(),
        tokenizer=Tokenizer(kind="word", vocab_size=model.vocab_size),
        data=Data(layout=Chunks(overlap=model.order - 2), sequence_length=128 + model.order - 2, held_out=0.05),
        optimizer=StochasticGradientDescent(
            learning_rate=3.0,
            schedule=InverseTime(decay=1e-8 * words),
            weight_decay=1e-5,
            decay_exclude=("bias",),
            clip_norm=0.0,
        ),
        training=Training(steps=5 * 14_000_000 // words, batch_size=words // 128, log_every=100, evaluate_every=1000),
        checkpoint=Checkpoint(every=1000),
    )
