"""A MobileBERT small enough for a laptop, and its teacher, on text that every machine has: the documentation of its
Python libraries.

    plmjax pretrain experiments/mobilebert_tiny.py
    plmjax pretrain experiments/mobilebert_tiny.py:teacher
    plmjax pretrain experiments/mobilebert_tiny.py --workdir runs/mine --data.input my_text/

Result: held-out loss 4.31 nats per target after 4,000 steps (4.81, 4.51 and 4.37 after 1,000, 2,000 and 3,000), unigram
entropy of the same targets 6.31; 29 % of the masked tokens are predicted correctly. 22,000 tokens per second on two
cores; eleven minutes while other programs ran on them. The teacher reaches 4.39 (4.96, 4.62 and 4.47), 28 %: so small
and after so few steps it is no better than its student.

Both learn the two tasks of BERT. MobileBERT learns them without its teacher here: what distillation is compared with.

Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, and there is no dropout, as in
bert_small. There is no distillation, and for this small batch the optimizer is BERT's AdamW, not LAMB.
"""

import dataclasses

from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear

SIZES = {
    "vocab_size": 4096,
    "max_position_embeddings": 128,
    "initializer_range": 0.05,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def experiment() -> Experiment:
    """Two layers of width 128 behind a bottleneck of 32, 4,000 steps of 1,024 tokens."""
    return Experiment(
        model=MobileBertConfig.mini(**SIZES),
        objective=BertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=4096),
        data=Data(layout=SentencePairs(), format="documentation", sequence_length=32, held_out=0.05),
        optimizer=BertAdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=200)),
        training=Training(steps=4000, batch_size=32, log_every=200, evaluate_every=1000, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )


def teacher() -> Experiment:
    """The teacher: two layers of width 128 as well, each 256 wide inside."""
    return dataclasses.replace(experiment(), model=MobileBertConfig.ib_bert_mini(**SIZES))
