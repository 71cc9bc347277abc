"""A Transformer-XL for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/transformer_xl_tiny.py

Result: held-out loss 4.60 nats a token after 1,000 steps (5.52, 5.02 and 4.68 after 250, 500 and 750), unigram entropy
of the same tokens 6.66: a margin of 2.1 nats. 21 % of the tokens are the likeliest.

As published except for the size: a memory of as many tokens as a row, post-norm, ReLU, Adam without weight decay, a
clip of 0.25, cosine. An evaluation remembers four times as many tokens as the training, with clamped distances.

Deviation: there is no dropout, as in gpt2_tiny, and the learning rate was chosen for this model, with a warm-up.
Deviation: byte-level BPE, whose ids are only roughly in the order of frequency, so that there is one cluster.
"""

from plmjax.data.layouts import ContiguousStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine


def experiment() -> Experiment:
    """Two layers of width 128, 1,000 steps of 16 rows of 64 tokens."""
    return Experiment(
        model=TransformerXlConfig.tiny(vocab_size=4096, n_head=4, d_head=32, mem_len=64, dropout=0.0),
        objective=TransformerXlPretraining(
            evaluation_mem_len=256, evaluation_clamp_len=128, evaluation_same_length=True
        ),
        tokenizer=Tokenizer(kind="gpt2-bpe", vocab_size=4096),
        data=Data(layout=ContiguousStreams(), format="documentation", sequence_length=64, held_out=0.05),
        optimizer=AdamW(
            learning_rate=2e-3, schedule=Cosine(warmup_steps=100), weight_decay=0.0, epsilon=1e-8, clip_norm=0.25
        ),
        training=Training(steps=1000, batch_size=16, log_every=50, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
