"""A small Transformer-XL on real text: Wikipedia and novels.

    plmjax pretrain experiments/transformer_xl_small.py --workdir runs/transformer_xl_small --data.input WIKIPEDIA BOOKS

WIKIPEDIA and BOOKS are folders of WikiExtractor files and of Gutenberg-style novels. gpt2_mini reads the same text with
as many layers of the same width. The vocabulary is of whole words, the most frequent first, in three clusters.

Result on 39 MB of Wikipedia and 58 MB of novels, after 1,000 steps, 1 million words, 6 minutes of processor time:
held-out loss 6.03 nats a word (6.52, 6.21 and 6.07 after 250, 500 and 750 steps), unigram entropy of the same words
7.11. At a rate of 2e-3, with weights of a standard deviation of 0.02, it was 7.03 after 750 steps.

Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, as in bert_small. There is no dropout,
as in gpt2_mini, and the learning rate was chosen for this model, with a warm-up.
"""

from plmjax.data.layouts import ContiguousStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine


def experiment() -> Experiment:
    """Four layers of width 128, 1,000 steps of 1,024 words."""
    return Experiment(
        model=TransformerXlConfig.tiny(
            vocab_size=60_000,
            cutoffs=(4000, 20_000),
            div_val=4,
            n_layer=4,
            n_head=4,
            d_head=32,
            mem_len=64,
            dropout=0.0,
            init_std=0.05,
        ),
        objective=TransformerXlPretraining(
            evaluation_mem_len=512, evaluation_clamp_len=128, evaluation_same_length=True
        ),
        tokenizer=Tokenizer(kind="word", vocab_size=60_000, lowercase=False),
        data=Data(layout=ContiguousStreams(), sequence_length=64, held_out=0.01),
        optimizer=AdamW(
            learning_rate=1e-3, schedule=Cosine(warmup_steps=100), weight_decay=0.0, epsilon=1e-8, clip_norm=0.25
        ),
        training=Training(steps=1000, batch_size=16, log_every=50, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=500, keep=2, best="eval/loss"),
    )
