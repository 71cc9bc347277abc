"""Longformer's language model of characters as published (Beltagy et al. 2020, arXiv 2004.05150, table 12).

    plmjax pretrain experiments/longformer_characters_4x4.py --data.input enwik8 --workdir runs/stage_1
    plmjax pretrain experiments/longformer_characters_4x4.py:stage_2 --from runs/stage_1 --data.input enwik8 \
        --workdir runs/stage_2
    plmjax evaluate runs/stage_5 --data enwik8 --data.format enwik8 --split test --window 32256 --stride 512
    plmjax plan experiments/longformer_characters_4x4.py --topology v5e:4x4

Recipe: five stages. Each begins with the parameters of the one before, doubles all windows (32 to 512 tokens by layer
in the first, 512 to 8,192 in the last) and the length of the rows (2,048 to 23,040, less than twice as long in the last
stage), and halves the learning rate. AdamW at 2.5e-4 in the first stage, constant after a warm-up of a tenth of its
steps, at most 10,000; weight decay 0.01, gradients clipped at 0.25; dropout 0.2, large 0.4. The layers are computed
again in the backward pass, as in the paper. text8 is `--data.format text8 --model.vocab_size 27
--tokenizer.vocab_size 27`.

Plans of the small model for v5e:4x4, one or two rows on each device, estimated, not measured. Hours follow the
compiler's estimate. Stage 1 is planned with libtpu 0.0.42.1, the others were with 0.0.52 and before the present kernel
of distances; stage 1 took 41 to 48 ms then:

    stage   rows of   compiler, ms      refined, ms   roofline, ms    MFU   refined MFU   GiB   hours   chip-hours
    1         2,048             66        26 to 31            7.1    8 %    17 to 20 %   0.8     7.9          127
    2         4,096            256       108 to 121             41    4 %    10 to 11 %   1.2     3.6           57
    3         8,192            316       131 to 148             32    4 %     9 to 10 %   1.3     4.4           70
    4        16,384            975       469 to 511            246    4 %      7 to 8 %   3.3     9.5          152
    5        23,040          2,154    1,023 to 1,100            539    3 %           7 %   6.7     3.0           48

A plan takes 10 to 20 minutes of processor time, since seven kinds of layers, each with a window and a dilation of its
own, are compiled one by one.

Results to expect on the test files: 1.00 bits a character of enwik8 and 1.10 of text8 for the small model, 0.99 of
enwik8 for the large one (tables 2 and 3). None of these runs was made.

Deviation: a line end of enwik8 is a byte like others, so that 205 bytes occur, as in transformer_xl_8x8.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.longformer.decoder import LongformerDecoderConfig
from plmjax.objectives.longformer import LongformerDecoderPretraining
from plmjax.runs.weight_mappings.longformer import WiderWindows
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Constant

BYTES = 205
"""Number of bytes that occur in enwik8."""
LENGTHS = (2048, 4096, 8192, 16_384, 23_040)
"""Tokens in a row of each stage."""
ROWS = (32, 32, 16, 16, 16)
"""Rows of a step of each stage."""
STEPS = (430_000, 50_000, 50_000, 35_000, 5_000)
LARGE_STEPS = (350_000, 25_000, 10_000, 5_000, 5_000)


def experiment() -> Experiment:
    """The first stage of the small model: 12 layers, 41 million parameters."""
    return _stage(1)


def stage_2() -> Experiment:
    """Rows of 4,096 characters."""
    return _stage(2)


def stage_3() -> Experiment:
    """Rows of 8,192 characters."""
    return _stage(3)


def stage_4() -> Experiment:
    """Rows of 16,384 characters."""
    return _stage(4)


def stage_5() -> Experiment:
    """Rows of 23,040 characters."""
    return _stage(5)


def large() -> Experiment:
    """The first stage of the large model: 30 layers, 102 million parameters."""
    return _large(1)


def large_2() -> Experiment:
    """Rows of 4,096 characters."""
    return _large(2)


def large_3() -> Experiment:
    """Rows of 8,192 characters."""
    return _large(3)


def large_4() -> Experiment:
    """Rows of 16,384 characters."""
    return _large(4)


def large_5() -> Experiment:
    """Rows of 23,040 characters."""
    return _large(5)


def _large(number: int) -> Experiment:
    return _stage(number, LongformerDecoderConfig.large(vocab_size=BYTES), LARGE_STEPS)


def _stage(
    number: int,
    model: LongformerDecoderConfig = LongformerDecoderConfig.small(vocab_size=BYTES),
    stage_steps: tuple[int, ...] = STEPS,
) -> Experiment:
    halved, steps = 2 ** (number - 1), stage_steps[number - 1]
    run = Experiment(
        model=model.widen(halved),
        objective=LongformerDecoderPretraining(),
        tokenizer=Tokenizer(kind="byte", vocab_size=BYTES),
        data=Data(layout=Chunks(), format="enwik8", sequence_length=LENGTHS[number - 1]),
        optimizer=AdamW(
            learning_rate=2.5e-4 / halved,
            schedule=Constant(warmup_steps=min(steps // 10, 10_000)),
            weight_decay=0.01,
            epsilon=1e-8,
            clip_norm=0.25,
            decay_exclude=(),
        ),
        training=Training(
            steps=steps,
            batch_size=ROWS[number - 1],
            log_every=100,
            evaluate_every=1000,
            evaluation_batches=0,
            remat="full",
        ),
        checkpoint=Checkpoint(every=1000, keep=2, best="eval/loss"),
    )
    return run if number == 1 else dataclasses.replace(run, weight_mapping=WiderWindows())
