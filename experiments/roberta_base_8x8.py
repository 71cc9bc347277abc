"""RoBERTa as published (Liu et al. 2019, arXiv 1907.11692, appendix table 9), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/roberta_base_8x8.py --data.input WIKIPEDIA BOOKS NEWS WEB STORIES
    plmjax plan experiments/roberta_base_8x8.py --topology v3:8x8

Recipe: 500,000 steps of 8,192 rows of 512 tokens, full sentences across documents; Adam (0.9, 0.98, 1e-6) at 6e-4 with
24,000 steps of warm-up, then linear decay; weight decay 0.01 of every parameter, as in fairseq; no clipping; dropout
0.1; 15 % of the tokens are predicted. The user provides the text; the paper used 160 GB (books and Wikipedia, news, web
pages, stories).

Plan for v3:8x8 (libtpu 0.0.52, jax 0.10.2), in 4 microbatches, estimated, not measured: a step of 847 ms (750 to 785
refined, roofline 432 ms), MFU 38 % (41 to 43 refined), 3.7 GiB of the 16 of a core; 118 hours and 7,532 chip-hours for
the whole run. `large` in 16 microbatches: 2,701 ms (2,352 to 2,488; 1,283), 40 % (43 to 46), 4.4 GiB; 375 hours and
24,013 chip-hours. `fairseq_2048`, whole: 262 ms (231 to 241; 107), 31 % (33 to 35), 3.2 GiB; 9.1 hours and 583
chip-hours.
The paper trained on 1,024 V100 GPUs, about a day for 100,000 steps of Large.

Result to expect: the released RoBERTa-Base reaches 87.6 % on MNLI's dev set, Large 90.2 % (fairseq examples/roberta).
These runs were planned, but not made.

Deviations from the released code: <s> and </s> are never predicted, and separators occur only between documents
(`plmjax.objectives.roberta`, `plmjax.data.layouts.full_sentences`); activations are bfloat16 over float32 parameters;
fairseq has half precision with a scaled loss; a tokenizer is trained on the text unless `--tokenizer.path` names the
published vocabulary; half a percent of the documents is held out for evaluation.
"""

import dataclasses

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear, Polynomial

_ADAM = AdamW(
    learning_rate=6e-4,
    schedule=Linear(warmup_steps=24_000),
    beta2=0.98,
    epsilon=1e-6,
    weight_decay=0.01,
    clip_norm=0.0,
    decay_exclude=(),
)


def experiment() -> Experiment:
    """125 million parameters on 64 chips."""
    return Experiment(
        model=RobertaConfig.base(),
        objective=RobertaPretraining(),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=50265, lowercase=False),
        data=Data(layout=FullSentences(), sequence_length=512, held_out=0.005),
        optimizer=_ADAM,
        training=Training(
            steps=500_000,
            batch_size=8192,
            accumulation=4,
            log_every=100,
            evaluate_every=5_000,
            evaluation_batches=10,
        ),
        checkpoint=Checkpoint(every=25_000),
    )


def large() -> Experiment:
    """355 million parameters: 4e-4 with 30,000 steps of warm-up."""
    run = experiment()
    return dataclasses.replace(
        run,
        model=RobertaConfig.large(),
        optimizer=dataclasses.replace(_ADAM, learning_rate=4e-4, schedule=Linear(warmup_steps=30_000)),
        training=dataclasses.replace(run.training, accumulation=16),
    )


def fairseq_2048() -> Experiment:
    """The released recipe for a smaller budget (fairseq examples/roberta/config/pretraining/base.yaml).

    125,000 steps of 2,048 rows at 5e-4 with 10,000 steps of warm-up.
    """
    run = experiment()
    return dataclasses.replace(
        run,
        optimizer=dataclasses.replace(_ADAM, learning_rate=5e-4, schedule=Linear(warmup_steps=10_000)),
        training=dataclasses.replace(run.training, steps=125_000, batch_size=2048, accumulation=1),
        checkpoint=Checkpoint(every=6_250),
    )


def norwegian() -> Experiment:
    """RoBERTa-Base on Norwegian text, as trained in JAX on TPU v3-8 (transformers v4, examples/flax/language-modeling).

        plmjax pretrain experiments/roberta_base_8x8.py:norwegian --data.input OSCAR
        plmjax report RUN --against roberta_norwegian

    Published: a loss of 1.78 and an accuracy of 0.64 after 18 epochs of OSCAR's unshuffled_deduplicated_no, in 15 hours
    and 32 minutes. The number of steps is not published. This run reads 18 times 1e9 tokens; `--training.tokens` sets
    18 times what `plmjax prepare` has counted. The rate decays from the end of the warm-up.

    Plan for v3:2x2, which is v3-8 (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured: a step of 302 ms (287 to 295
    refined, roofline 149), MFU 49 % (51 to 52), 8.1 of 16 GiB; 11.5 hours and 46 chip-hours.

    Deviation: the released script has blocks of tokens without <s> and </s>; FullSentences has both.
    """
    run = experiment()
    return dataclasses.replace(
        run,
        data=Data(layout=FullSentences(), sequence_length=128, language="da"),  # the rules nearest to Norwegian
        optimizer=AdamW(
            learning_rate=3e-4,
            schedule=Polynomial(warmup_steps=1_000),
            beta2=0.98,
            epsilon=1e-8,
            weight_decay=0.01,
            clip_norm=0.0,
        ),
        training=Training(
            steps=0, tokens=1.8e10, batch_size=1024, log_every=100, evaluate_every=5_000, evaluation_batches=100
        ),
        checkpoint=Checkpoint(every=10_000),
    )
