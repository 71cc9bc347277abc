"""GloVe on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/glove_tiny.py
    plmjax nearest runs/glove_tiny array

As released but for its size: x_max 100, a power of 3/4, Adagrad at 0.05.
"""

from plmjax.data.layouts import Cooccurrences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.glove import GloveConfig
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.training.optimizers import GloveAdagrad


def experiment() -> Experiment:
    """100 numbers a word, 2,000 steps of 8,192 cells."""
    return Experiment(
        model=GloveConfig.tiny(),
        objective=WeightedLeastSquares(x_max=10.0),
        tokenizer=Tokenizer(kind="word", vocab_size=8192),
        data=Data(
            layout=Cooccurrences(window=10, held_out=0.02), format="documentation", sequence_length=256, held_out=0.0
        ),
        optimizer=GloveAdagrad(learning_rate=0.05),
        training=Training(steps=2000, batch_size=32, log_every=100, evaluate_every=500),
        checkpoint=Checkpoint(every=1000, keep=2),
    )
