"""A GPT small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/gpt_tiny.py
    plmjax pretrain experiments/gpt_tiny.py --workdir runs/mine --data.input my_text/

Result: held-out loss 4.40 nats per target after 2,000 steps (5.13, 4.66 and 4.46 after 500, 1,000 and 1,500), unigram
entropy of the same targets 6.33; 24 % of the next tokens are predicted correctly. About 2 million tokens.

As published except for the size: lower-cased BPE inside words, tied embeddings, layer norms after the residual sums,
cosine decay to 0.

Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, and there is no dropout, as in
bert_small.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.gpt import GptConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine


def experiment() -> Experiment:
    """Two layers of width 128, 2,000 steps of 1,024 tokens."""
    return Experiment(
        model=GptConfig.tiny(
            vocab_size=4096,
            n_positions=128,
            n_head=4,
            initializer_range=0.05,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        objective=NextToken(),
        tokenizer=Tokenizer(kind="bpe", vocab_size=4096),
        data=Data(layout=Chunks(), format="documentation", sequence_length=128, held_out=0.05),
        optimizer=AdamW(learning_rate=2e-3, schedule=Cosine(warmup_steps=200)),
        training=Training(steps=2000, batch_size=8, log_every=100, evaluate_every=500, evaluation_batches=50),
        checkpoint=Checkpoint(every=500, keep=2, best="eval/loss"),
    )
