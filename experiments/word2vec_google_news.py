"""word2vec of the published size: embedding size 300 for 3 million words and phrases, on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/word2vec_google_news.py --data.input NEWS
    plmjax plan experiments/word2vec_google_news.py --topology v3:8x8

Recipe of GoogleNews-vectors-negative300, whose command Mikolov gave on the list word2vec-toolkit: CBOW, windows of 5, 3
negatives, subsampling of words above a hundred-thousandth of the text, words with at least 10 occurrences, 100 billion
words once; v0.1c's rate of 0.05. The text is the user's own: the published one was not released, nor is the program
that joined its phrases part of this project.

Plan for v3:8x8 (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured, over the chosen mesh of data 64 x fsdp 2: a step
of 14.3 ms (13.9 to 15.9 refined) for 65,536 words, 4.6 million words per second, half of it for the network; 0.4 GiB of
the 16 of a core; 6.1 hours and 388 chip-hours for 100 billion words. The released program runs on one machine, and has
no mesh. With `--mesh.fsdp 4` more of the tables is divided by columns, and a step takes 10.3 ms; with `--mesh.fsdp 2
--mesh.tensor 2` it takes 95 ms.

Deviations: a step takes 65,536 words at once, while the released program has 12 threads that each take one; the rate
falls to 0; a tokenizer of words is trained on the text.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.word2vec import ContinuousBagOfWords, Word2VecConfig
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """1,800 million parameters; every device has a share of the two tables."""
    return Experiment(
        model=Word2VecConfig.google_news(),
        objective=NegativeSampling(
            architecture=ContinuousBagOfWords(), negatives=3, threshold=1e-5, min_count=10, row_updates=32.0
        ),
        tokenizer=Tokenizer(kind="word", vocab_size=3_000_000),
        data=Data(layout=Chunks(), sequence_length=512, held_out=0.0005),
        optimizer=StochasticGradientDescent(learning_rate=0.05, schedule=Linear(), clip_norm=0.0),
        training=Training(
            steps=1_530_000, batch_size=128, log_every=1_000, evaluate_every=50_000, evaluation_batches=100
        ),
        checkpoint=Checkpoint(every=100_000),
    )
