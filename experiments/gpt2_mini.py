"""A small GPT-2 on real text: Wikipedia and novels.

    plmjax pretrain experiments/gpt2_mini.py --workdir runs/gpt2_mini --data.input WIKIPEDIA BOOKS

WIKIPEDIA and BOOKS are folders of WikiExtractor files and of Gutenberg-style novels. bert_small reads the same text
with as many layers of the same width.

Result on 39 MB of Wikipedia and 58 MB of novels, after 1,000 steps, 2 million tokens: held-out loss 5.81 nats per
token, unigram entropy of the same tokens 7.43.

Deviation: there is no dropout, as in bert_small, and the learning rate was chosen for this model.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine


def experiment() -> Experiment:
    """Four layers of width 128, 1,000 steps of 2,048 tokens."""
    return Experiment(
        model=Gpt2Config(
            vocab_size=8192,
            n_positions=128,
            n_embd=128,
            n_layer=4,
            n_head=4,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        ),
        objective=NextToken(),
        tokenizer=Tokenizer(kind="gpt2-bpe", vocab_size=8192),
        data=Data(layout=Chunks(), sequence_length=128, held_out=0.01),
        optimizer=AdamW(learning_rate=2e-3, schedule=Cosine(warmup_steps=100)),
        training=Training(steps=1000, batch_size=16, log_every=100, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=500, keep=2, best="eval/loss"),
    )
