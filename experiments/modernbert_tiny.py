"""A ModernBERT small enough for a laptop, on text that every machine has: the documentation of its Python libraries.

    plmjax pretrain experiments/modernbert_tiny.py
    plmjax pretrain experiments/modernbert_tiny.py --workdir runs/mine --data.input my_text/
    plmjax pretrain experiments/modernbert_tiny.py:eurobert
    plmjax pretrain experiments/modernbert_tiny.py:neobert
    plmjax pretrain experiments/modernbert_tiny.py:decoder

Result: held-out loss 3.96 nats per target after 4,000 steps (4.84, 4.33, 4.07 after 1,000, 2,000, 3,000), unigram
entropy of the same targets 6.65; 33 % of the masked tokens are predicted correctly. 18,000 tokens per second on two
free cores, four minutes with the preparation.

Result of `eurobert`: 5.13 nats per target, of half of the tokens, after 4,000 steps (5.44 after 2,000), unigram entropy
6.64; 18 % of the masked tokens are predicted correctly.

Result of `neobert`: 4.78 nats per target after 4,000 steps (6.17, 5.26, 4.92 after 1,000, 2,000, 3,000), unigram
entropy 6.66; 23 % of the masked tokens are predicted correctly.

As published except for the size: byte-level BPE that keeps capitals, full sentences across documents, 30 % of tokens
masked, layers of both kinds, a window of 32 tokens in two of three layers.

Deviation: the rate of masked tokens of evaluations is that of the training; the paper evaluates at 15 %.
Deviation: AdamW and linear decay; the paper has StableAdamW and a constant rate that decays at the end.
"""

import dataclasses

from plmjax.data.layouts import Chunks, FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.modernbert.neobert import NeoBertConfig
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear

SIZES = {
    "vocab_size": 4096,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "global_rope_theta": 10_000.0,
    "initializer_range": 0.05,
    "attention_output_dropout": 0.0,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""Fields of all models."""


def experiment() -> Experiment:
    """Four layers of width 128, 4,000 steps of 1,024 tokens."""
    return Experiment(
        model=ModernBertConfig.tiny(local_attention=32, **SIZES),
        objective=RobertaPretraining(rate=0.3),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=4096, lowercase=False),
        data=Data(layout=FullSentences(), format="documentation", sequence_length=128, held_out=0.05),
        optimizer=AdamW(
            learning_rate=1e-3, schedule=Linear(warmup_steps=200), beta2=0.98, clip_norm=0.0, weight_decay=0.01
        ),
        training=Training(steps=4000, batch_size=8, log_every=200, evaluate_every=1000, evaluation_batches=50),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )


def eurobert() -> Experiment:
    """A EuroBERT whose four heads of queries share two of keys; half of the tokens are replaced by <mask>."""
    return dataclasses.replace(
        experiment(),
        model=EuroBertConfig.tiny(num_key_value_heads=2, **SIZES),
        objective=RobertaPretraining(rate=0.5, mask_fraction=1.0, random_fraction=0.0),
    )


def neobert() -> Experiment:
    """A NeoBERT; a fifth of the tokens is replaced by <mask>."""
    return dataclasses.replace(
        experiment(),
        model=NeoBertConfig.tiny(**SIZES),
        objective=RobertaPretraining(rate=0.2, mask_fraction=1.0, random_fraction=0.0),
    )


def decoder() -> Experiment:
    """A decoder of ModernBERT's layers, as Ettin's; rows of consecutive tokens."""
    run = experiment()
    return dataclasses.replace(
        run,
        model=ModernBertDecoderConfig.tiny(local_attention=32, **SIZES),
        objective=NextToken(),
        data=dataclasses.replace(run.data, layout=Chunks()),
    )
