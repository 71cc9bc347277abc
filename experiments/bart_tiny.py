"""A BART small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/bart_tiny.py
    plmjax pretrain experiments/bart_tiny.py --workdir runs/mine --data.input my_text/

Result on 42 MB of Wikipedia (`--data.input wikipedia_en/train --data.format wikiextractor`): held-out loss 5.25, 4.31,
3.95 and 3.78 nats per target after 500, 1,000, 1,500 and 2,000 steps, unigram entropy of the same targets 6.93; 42 % of
the targets are predicted correctly. 13 minutes of processor time, preparation included; 29 minutes of wall time on two
cores that several other programs used too.

For the documentation only half of a run is recorded: 4.98 after 500 and 4.17 after 1,000 steps, unigram entropy 6.66.

As published except for the size: spans of 30 % of the words hidden, all sentences in another order, Adam as published
(0.9, 0.98) with decay of all parameters, gradients clipped at 0.1.

Deviation: weights are initialized with a standard deviation of 0.05, not 0.02, and there is no dropout, as in
bert_small.
"""

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.bart.bart import BartConfig
from plmjax.objectives.denoising import Denoising
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """Two layers of width 128 on each side, 2,000 steps of 1,024 tokens."""
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return Experiment(
        model=BartConfig.tiny(vocab_size=4096, max_position_embeddings=128, init_std=0.05, dropout=0.0, **heads),
        objective=Denoising(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=4096, lowercase=False),
        data=Data(layout=FullSentences(), format="documentation", sequence_length=64, held_out=0.05),
        optimizer=AdamW(
            learning_rate=1e-3, schedule=Linear(warmup_steps=200), beta2=0.98, clip_norm=0.1, decay_exclude=()
        ),
        training=Training(steps=2000, batch_size=16, log_every=100, evaluate_every=500, evaluation_batches=50),
        checkpoint=Checkpoint(every=500, keep=2, best="eval/loss"),
    )
