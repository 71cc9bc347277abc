"""GloVe as published (Pennington et al., EMNLP 2014: glove.6B.300d), on a 2x2 slice.

    plmjax tokenizer train --kind word --vocab_size 400005 --lowercase True --input TEXT --output tokenizer
    plmjax prepare --held_out 0 --tokenizer tokenizer --input TEXT --output dataset
    plmjax cooccurrence dataset --output count --window 10 --memory 65536
    plmjax pretrain experiments/glove_2x2.py --data.path dataset --data.layout.path count
    plmjax plan experiments/glove_2x2.py --topology v3:2x2

Published: 400,000 lower-cased words with vectors of size 300; a symmetric window of 10 words, each counted as one over
its distance; x_max 100, a power of 3/4, Adagrad at 0.05; 100 passes over the cells (section 4.2). The user provides the
text; the paper used Wikipedia of 2014 and Gigaword 5, 6 billion tokens. `plmjax cooccurrence` prints the number of
cells: set `training.steps` to 100 times that over 262,144.

Plan for v3:2x2 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 43 ms (40 to 44 refined, roofline 23
ms), 2.9 GiB of the 16 of a core; 11.9 hours and 48 chip-hours for a million steps.
Result to expect: 71.7 % of the analogies, 77.4 % of the semantic and 67.0 % of the syntactic ones (the paper, table 2).
This run was planned, but not made.

Deviation: a step takes 262,144 cells at once, less than one per word; the released program takes one after the other.
"""

from plmjax.data.layouts import Cooccurrences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.glove import GloveConfig
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.training.optimizers import GloveAdagrad


def experiment() -> Experiment:
    """240.8 million parameters."""
    return Experiment(
        model=GloveConfig.six_billion(vocab_size=400_005),
        objective=WeightedLeastSquares(),
        tokenizer=Tokenizer(kind="word", vocab_size=400_005, lowercase=True),
        data=Data(layout=Cooccurrences(), sequence_length=1024, held_out=0.0),
        optimizer=GloveAdagrad(learning_rate=0.05),
        training=Training(steps=1_000_000, batch_size=256, log_every=100, dtype="float32"),
        checkpoint=Checkpoint(every=10_000),
    )
