"""A small BERT on real text: Wikipedia and novels, in two phases.

    plmjax pretrain experiments/bert_small.py --workdir runs/bert_small --data.input WIKIPEDIA BOOKS

WIKIPEDIA and BOOKS are folders of WikiExtractor files and of Gutenberg-style novels. Nine tenths of the steps read rows
of 32 tokens and the last tenth rows of 64, as the published runs go from 128 to 512.

Result on 39 MB of Wikipedia and 58 MB of novels, one core of an AMD EPYC: 35 minutes, 10,000 tokens per second.
Held-out loss 4.58 nats per target after step 14,000 (unigram entropy 6.95), 5.50 after the second phase (7.02): its new
positions are untrained, and only a tenth of the learning rate is left. At a rate of 1.5e-3 the run did not leave the
plateau.

Deviation: weights are initialized with a standard deviation of 0.05, not 0.02 (the scale of a layer's input is kept by
0.04 for the width 768 of BERT-Base, and by 0.09 for 128), and there is no dropout. Both shorten the plateau at the
unigram entropy, where a small model starts.
"""

from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Phase, Tokenizer, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """Four layers of width 128, 16,000 steps of 1,024 tokens."""
    return Experiment(
        model=BertConfig(
            vocab_size=8192,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=128,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        objective=BertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=8192),
        data=Data(layout=SentencePairs(), sequence_length=32, held_out=0.01),
        optimizer=BertAdamW(learning_rate=5e-4, schedule=Linear(warmup_steps=200)),
        training=Training(steps=16_000, batch_size=32, log_every=100, evaluate_every=1000, evaluation_batches=50),
        checkpoint=Checkpoint(every=4000, keep=2, best="eval/loss"),
        phases=(Phase(fraction=0.9), Phase(fraction=0.1, sequence_length=64, batch_size=16)),
    )
