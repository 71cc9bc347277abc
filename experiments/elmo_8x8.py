"""ELMo as published (Peters et al., arXiv 1802.05365; allenai/bilm-tf bin/train_elmo.py), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/elmo_8x8.py --data.input NEWS --tokenizer.path WORDS
    plmjax plan experiments/elmo_8x8.py --topology v3:8x8

Recipe: two layers of 4,096 cells in each direction, projected to size 512; 384 rows that continue from batch to batch,
20 words of each at a time, 10 passes over the 768,648,884 words of the 1 Billion Word Benchmark; Adagrad at 0.2;
dropout 0.1; 8,192 words are sampled for the softmax of each direction.

Adagrad is the released rule. There the gradient is multiplied by the 20 words of a row, is clipped to 10, and the sums
of squares start at 1; here it is not multiplied, is clipped to 1/2, and the sums start at 1/400.

Plan for v3:8x8 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 70 ms (48 to 53 refined, roofline 18.8
ms), 1.9 GiB of the 16 of a core; 19.3 hours and 1,238 chip-hours for the run. With six rows per chip and one word after
the other, the matrix products are small: 1.2 to 1.7 % of the peak.
Result to expect: the released model has a perplexity of 39.7 on held-out text, the mean of both directions (section 3.4
of the paper). This run was planned, but not made.

Deviations from the released code: states are reset at every document; both directions read the same text from its two
ends, while the released code samples sentences for each; one batch is one step, while three GPUs had 128 rows each.
"""

from plmjax.data.layouts import BidirectionalStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.elmo import ElmoConfig
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.training.optimizers import Adagrad


def experiment() -> Experiment:
    """501 million parameters, 407 of them the softmax, on 64 chips."""
    return Experiment(
        model=ElmoConfig.original(),
        objective=BidirectionalLanguageModel(),
        tokenizer=Tokenizer(kind="word", vocab_size=793_471, lowercase=False),
        data=Data(layout=BidirectionalStreams(), sequence_length=20, held_out=0.005),
        optimizer=Adagrad(learning_rate=0.2, initial_accumulator=1 / 400, epsilon=0.0, clip_norm=0.5),
        training=Training(
            steps=1_000_844, batch_size=384, log_every=100, evaluate_every=50_000, evaluation_batches=100
        ),
        checkpoint=Checkpoint(every=50_000),
    )
