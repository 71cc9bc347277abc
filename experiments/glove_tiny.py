"""GloVe on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/glove_tiny.py
    plmjax nearest runs/glove_tiny array

Result: a held-out loss of 0.0732 per cell after 1,000 steps and 0.0668 after 2,000; a model that knows only the counts
of the words has 0.3005. With `--training.steps 4000` it overfits the counted cells: 0.0720 after 3,000 steps and 0.0773
after 4,000. Nearest to "array" are then input, arrays, returned and shape. 260,000 cells per second on one core of an
AMD EPYC that other programs used too.

As released except for the size and x_max, which is that of the released demo for small texts: a power of 3/4, a window
of 10 words, Adagrad at 0.05.
"""

from plmjax.data.layouts import Cooccurrences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.glove import GloveConfig
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.training.optimizers import GloveAdagrad


def experiment() -> Experiment:
    """embedding size 100, 2,000 steps of 8,192 cells."""
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
