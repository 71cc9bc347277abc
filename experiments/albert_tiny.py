"""An ALBERT small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/albert_tiny.py
    plmjax pretrain experiments/albert_tiny.py --workdir runs/mine --data.input my_text/

Result: held-out loss 5.71 nats per target, unigram entropy of the same targets 6.27; six and a half minutes of
processor time, the tokenizer and the export included. Runs of up to three words are hidden. They are harder to predict
than the single tokens of bert_tiny.

Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, and there is no dropout, as in
bert_tiny; for this small batch the optimizer is BERT's AdamW, not LAMB.
"""

from plmjax.data.layouts import SentenceOrder
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.albert import AlbertConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """One layer of width 128, applied three times, 4,000 steps of 1,024 tokens."""
    return Experiment(
        model=AlbertConfig.tiny(
            vocab_size=4096,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=128,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        objective=AlbertPretraining(),
        tokenizer=Tokenizer(kind="sentencepiece-unigram", vocab_size=4096),
        data=Data(layout=SentenceOrder(duplicates=10), format="documentation", sequence_length=32, held_out=0.05),
        optimizer=BertAdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=200)),
        training=Training(steps=4000, batch_size=32, log_every=200, evaluate_every=1000, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
