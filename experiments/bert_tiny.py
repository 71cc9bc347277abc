"""A BERT small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

plmjax pretrain experiments/bert_tiny.py
plmjax pretrain experiments/bert_tiny.py --workdir runs/mine --data.input my_text/
"""

from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Checkpoint, Data, Experiment, Optimizer, Tokenizer, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining


def experiment() -> Experiment:
    """Four layers of 128 features, 1500 steps of 64 rows of 64 tokens."""
    return Experiment(
        model=BertConfig(
            vocab_size=4096,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=128,
        ),
        objective=BertPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=4096),
        data=Data(layout=SentencePairs(duplicates=4), sequence_length=64, validation=0.05),
        optimizer=Optimizer(learning_rate=1e-3, warmup_steps=150),
        training=Training(steps=1500, batch_size=64, log_every=50, evaluate_every=500, evaluation_batches=40),
        checkpoint=Checkpoint(every=500, keep=2, best="eval/loss"),
    )
