"""BART as published (Lewis et al. 2019, arXiv 1910.13461; fairseq examples/bart), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/bart_large_8x8.py --data.input WIKIPEDIA BOOKS NEWS WEB STORIES
    plmjax pretrain experiments/bart_large_8x8.py:base --data.input WIKIPEDIA BOOKS NEWS WEB STORIES
    plmjax plan experiments/bart_large_8x8.py --topology v3:8x8

Recipe: 500,000 steps of 8,192 rows of 512 tokens; 30 % of the words hidden in spans, all sentences in another order;
Adam (0.9, 0.98, 1e-6) at 4e-4 with 10,000 steps of warm-up, then linear decay; weight decay 0.01 of every parameter, as
in fairseq; gradients clipped at 0.1; dropout 0.1. The user provides the text; the paper used RoBERTa's 160 GB.

Result to expect: the released large model reaches 89.9 % on MNLI's dev set and 88.8 exact matches on SQuAD 1.1 (table 2
of the paper), and 44.2 ROUGE-1 on CNN/DailyMail (table 3). Neither run was made.

Plans for v3:8x8 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: large in 16 microbatches, a step of 4,062 ms
(3,547 to 3,731 refined, roofline 1,827 ms), MFU 35 % (38 to 40 refined), 3.5 GiB of the 16 of a core, 564 hours and
36,106 chip-hours for the whole run; base in 8, a step of 1,395 ms (1,201 to 1,262 refined, roofline 695 ms), MFU 35 %
(38 to 40 refined), 1.6 GiB, 194 hours and 12,398 chip-hours.

Deviation: the learning rate is that of the released command for the base model; large's was not published.
Deviation: dropout is used to the end; the paper has none in the last tenth of the steps of the large model.
Deviation: a tokenizer is trained on the text unless `--tokenizer.path` names the published vocabulary; activations are
bfloat16 over float32 parameters; half a percent of the documents is held out for evaluation.
"""

import dataclasses

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.bart.bart import BartConfig
from plmjax.objectives.denoising import Denoising
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """406 million parameters on 64 chips."""
    return Experiment(
        model=BartConfig.large(),
        objective=Denoising(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=50265, lowercase=False),
        data=Data(layout=FullSentences(), sequence_length=512, held_out=0.005),
        optimizer=AdamW(
            learning_rate=4e-4,
            schedule=Linear(warmup_steps=10_000),
            beta2=0.98,
            epsilon=1e-6,
            clip_norm=0.1,
            decay_exclude=(),
        ),
        training=Training(
            steps=500_000,
            batch_size=8192,
            accumulation=16,
            log_every=100,
            evaluate_every=5_000,
            evaluation_batches=10,
            remat="full",
        ),
        checkpoint=Checkpoint(every=5_000),
    )


def base() -> Experiment:
    """139 million parameters."""
    run = experiment()
    training = dataclasses.replace(run.training, accumulation=8)
    return dataclasses.replace(run, model=BartConfig.base(), training=training)
