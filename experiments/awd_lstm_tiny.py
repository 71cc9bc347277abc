"""An AWD-LSTM small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/awd_lstm_tiny.py

Result: held-out loss 5.47 nats per token after 1,000 steps (6.77, 6.09 and 5.71 after 100, 300 and 600), unigram
entropy of the same tokens 6.72: a margin of 1.25 nats. 16 % of the tokens are the most likely ones. The loss is still
falling, so averaging has not started. The run was stopped at step 913 and was resumed from its checkpoint.

    plmjax pretrain experiments/awd_lstm_tiny.py --training.steps 3000 --training.evaluate_every 50 \\
        --optimizer.patience 2

starts to average at step 1,500: the held-out loss there is 5.252, after 5.225, 5.239 and 5.224. The mean of the
parameters since then has 5.116 at step 1,550, 4.925 at step 2,000 and 4.768 at step 3,000; it falls with every
evaluation. At the end 21 % of the tokens are the most likely ones. The run took 7 minutes of one core.

As published except for the size: plain gradient descent at a rate of 30, gradients clipped to 0.25, states carried from
window to window.

Deviation: byte-level BPE instead of words, smaller dropouts, because the run is short, and windows of 60 tokens.
"""

from plmjax.data.layouts import Windows
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.training.optimizers import StochasticGradientDescent


def experiment() -> Experiment:
    """Two layers of 256 and 128, 1,000 steps of 8 windows of 60 tokens."""
    return Experiment(
        model=AwdLstmConfig.tiny(
            vocab_size=4096,
            embedding_dropout=0.02,
            input_dropout=0.1,
            weight_dropout=0.1,
            hidden_dropout=0.1,
            output_dropout=0.1,
        ),
        objective=AwdLstmPretraining(),
        tokenizer=Tokenizer(kind="gpt2-bpe", vocab_size=4096),
        data=Data(layout=Windows(overlap=20), format="documentation", sequence_length=80, held_out=0.05),
        optimizer=StochasticGradientDescent(
            learning_rate=30.0, clip_norm=0.25, weight_decay=1.2e-6, averaging="non-monotone", patience=5
        ),
        training=Training(steps=1000, batch_size=8, log_every=50, evaluate_every=100, evaluation_batches=25),
        checkpoint=Checkpoint(every=500, keep=2),
    )
