"""The Lite Transformer as published (Wu et al. 2020, arXiv 2004.11886; mit-han-lab/lite-transformer).

    plmjax pretrain experiments/lite_transformer_8x8.py --data.format tsv --data.streams source=en target=fr \\
        --data.input WMT14
    plmjax pretrain experiments/lite_transformer_8x8.py:iwslt --data.format tsv --data.streams source=de target=en \\
        --data.input IWSLT14
    plmjax plan experiments/lite_transformer_8x8.py --topology v3:8x8

Recipe of WMT 2014, English to French: 50,000 steps of about 524,000 tokens (4,096 tokens, 8 GPUs, 16 batches summed);
Adam (0.9, 0.98) with a warm-up of 5,000 steps to 1e-3, then a cosine; dropout 0.1, label smoothing 0.1; one vocabulary
for both languages. IWSLT 2014, German to English: 50,000 steps of 4,096 tokens; Adam at 5e-4 with a warm-up of 4,000
steps and the inverse square root, weight decay 1e-4, dropout 0.2. The user provides the text.

Plan of the largest one for v3:8x8 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 105 ms (75 to 84
refined, roofline 50 ms), MFU 15 % (18 to 21 refined), 2.1 GiB of the 16 of a core; 1.5 hours and 93 chip-hours for the
whole run. The plan reports that 57.0M elements are reduced in a step for a gradient of 37.1M. The difference is the
word table, 19.8M elements, which is both the embedding of the two sides and the output layer. Its gradient as the
output layer is summed over the devices before the backward pass of the layers, so that no sum for each device stays in
memory during that pass, and its gradient as the embedding after it. If the devices divided the width, each would add up
its own columns of the second one instead; 128 devices do not divide 496, nor 200 or 408. A mesh of data 16 x fsdp 8 and
40,064 words leave the second sum as it is. It costs less than 1 ms.

Results to expect: 35.3 BLEU for the largest one (README of the released code). None of these runs was made.

Deviations: pairs are packed into rows of 128 tokens a side, as in transformer_base.py. The cosine ends with the run.
Activations are bfloat16 over float32 parameters; half a percent of the pairs is held out for evaluation.
"""

import dataclasses

from plmjax.data.layouts import PairedStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerConfig
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine, InverseSquareRoot


def experiment() -> Experiment:
    """WMT, width 496, 37 million parameters with the words, on 64 chips."""
    return _wmt(LiteTransformerConfig.wmt_496())


def medium() -> Experiment:
    """WMT, width 408."""
    return _wmt(LiteTransformerConfig.wmt_408())


def small() -> Experiment:
    """WMT, width 200."""
    return _wmt(LiteTransformerConfig.wmt_200())


def iwslt() -> Experiment:
    """IWSLT, width 160, lightweight convolutions, for a slice of 4 chips."""
    model = LiteTransformerConfig.iwslt(vocab_size=10_000)
    optimizer = AdamW(
        learning_rate=5e-4,
        schedule=InverseSquareRoot(warmup_steps=4000),
        beta2=0.98,
        weight_decay=1e-4,
        clip_norm=0.0,
    )
    return dataclasses.replace(_run(model, batch_size=32), optimizer=optimizer)


def _wmt(model: LiteTransformerConfig) -> Experiment:
    optimizer = AdamW(
        learning_rate=1e-3, schedule=Cosine(warmup_steps=5000), beta2=0.98, weight_decay=0.0, clip_norm=0.0
    )
    return dataclasses.replace(_run(model, batch_size=4096), optimizer=optimizer)


def _run(model: LiteTransformerConfig, batch_size: int) -> Experiment:
    return Experiment(
        model=model,
        objective=SequenceToSequence(label_smoothing=0.1),
        tokenizer=Tokenizer(kind="sentencepiece-bpe", vocab_size=model.vocab_size, lowercase=False),
        data=Data(layout=PairedStreams(start="end", pack=8), sequence_length=128, held_out=0.005),
        training=Training(
            steps=50_000, batch_size=batch_size, log_every=100, evaluate_every=2_000, evaluation_batches=20
        ),
        checkpoint=Checkpoint(every=1_000, keep=10),
    )
