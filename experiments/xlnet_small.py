"""A small XLNet on real text: Wikipedia and novels.

    plmjax pretrain experiments/xlnet_small.py --workdir runs/xlnet_small --data.input WIKIPEDIA BOOKS

WIKIPEDIA and BOOKS are folders of WikiExtractor files and of Gutenberg-style novels. bert_small and gpt2_mini read the
same text with as many layers of the same width.

Result on 39 MB of Wikipedia and 58 MB of novels, after 5,000 steps, 5 million tokens, 13 minutes of processor time:
held-out loss 4.87 nats a target (5.65, 5.26, 5.06 and 4.94 after 1,000, 2,000, 3,000 and 4,000 steps), unigram entropy
of the same targets 6.94; 22 % of the predictions are right. With rows of 64 tokens, a sixth of which is predicted, the
loss was only 0.06 nats below the unigram entropy after 3,000 steps.

Deviation: ten tokens of a row of 32 are predicted, not a sixth. The gradients of a small model are noisy.
Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, and there is no dropout, as in
bert_small.
"""

from plmjax.data.layouts import ContinuedPairs
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """Four layers of width 128 and a memory of 24 tokens, 5,000 steps of 1,024 tokens."""
    return Experiment(
        model=XlnetConfig.tiny(
            vocab_size=8192,
            n_layer=4,
            n_head=4,
            d_inner=512,
            initializer_range=0.05,
            dropout=0.0,
            summary_last_dropout=0.0,
        ),
        objective=PermutationLanguageModel(predictions=10, memory_length=24),
        tokenizer=Tokenizer(kind="xlnet-unigram", vocab_size=8192),
        data=Data(layout=ContinuedPairs(), sequence_length=32, held_out=0.01),
        optimizer=BertAdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=200)),
        training=Training(steps=5000, batch_size=32, log_every=200, evaluate_every=500, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
