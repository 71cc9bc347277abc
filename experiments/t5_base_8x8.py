"""T5 as it was published (Raffel et al. 2020), on slices of TPU v3 and v4.

    plmjax pretrain experiments/t5_base_8x8.py --data.input WEB_PAGES
    plmjax pretrain experiments/t5_base_8x8.py:large --data.input WEB_PAGES
    plmjax plan experiments/t5_base_8x8.py:eleven_billion --topology v4:4x8x8

Published, of the released models: the sizes, 1,000,000 steps of 2,048 sources of 512 tokens with targets of 114, spans
of 3 tokens that hide 15 % of a text (568 tokens become a row), Adafactor with the inverse square root of the step,
dropout 0.1 in version 1.0 and none in version 1.1 (section 3.7 and google-research/text-to-text-transfer-transformer,
released_checkpoints.md). A cased unigram vocabulary of 32,000 pieces and 100 sentinels; the table has 32,128 rows. The
user provides the text; the paper used C4, 750 GB of filtered web pages.

Plans of `eleven_billion` (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured, over the chosen meshes. GiB are of the
16 of a core of v3 and the 32 of a chip of v4. Of the other runs `nano` alone was planned. None was made.

    slice     data x fsdp   ms a step     refined, ms   roofline   MFU   refined MFU    GiB   hours   chip-hours
    v3:8x16       128 x 2       6,048   5,788 to 6,066      2,962   49 %    49 to 51 %   13.2   1,680      215,025
    v4:4x8x8      256 x 1       2,499   1,602 to 1,716        662   26 %    39 to 41 %   29.6     694      177,703

The meshes of the published runs are not known; the paper says that they combined data and model parallelism (section
2.1). `--mesh.data 1 --mesh.fsdp 32 --mesh.tensor 8 --training.accumulation 2` takes 6,215 ms and 4.0 GiB on v3:8x16.

Deviation: texts follow each other in a row; the released code ends a row at the end of a text, and packs.
Deviation: version 1.0 was pretrained on a mixture of C4 and of its evaluation tasks, version 1.1 on C4 only; here both
are trained on text only.
"""

import dataclasses

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Phase, Tokenizer, Training
from plmjax.models.t5 import T5Config
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.training.optimizers import Adafactor


def experiment() -> Experiment:
    """Base of version 1.0: 223 million parameters."""
    return Experiment(
        model=T5Config.base(),
        objective=SpanCorruption(z_loss=1e-4),
        tokenizer=Tokenizer(kind="t5-unigram", vocab_size=32100),
        data=Data(layout=Chunks(), sequence_length=568, held_out=0.005),
        optimizer=Adafactor(),
        training=Training(
            steps=1_000_000, batch_size=2048, log_every=100, evaluate_every=10_000, evaluation_batches=20, remat="full"
        ),
        checkpoint=Checkpoint(every=5_000),
    )


def small() -> Experiment:
    """61 million parameters."""
    return dataclasses.replace(experiment(), model=T5Config.small())


def large() -> Experiment:
    """738 million parameters."""
    return dataclasses.replace(experiment(), model=T5Config.large())


def three_billion() -> Experiment:
    """2,852 million parameters."""
    return dataclasses.replace(experiment(), model=T5Config.three_billion())


def eleven_billion() -> Experiment:
    """11,307 million parameters."""
    return dataclasses.replace(experiment(), model=T5Config.eleven_billion())


def base_v1_1() -> Experiment:
    """Version 1.1: 248 million parameters, no dropout."""
    return _version_1_1(experiment(), T5Config.base_v1_1())


def xxl_v1_1() -> Experiment:
    """Version 1.1: 11,135 million parameters."""
    return _version_1_1(eleven_billion(), T5Config.xxl_v1_1())


def nano() -> Experiment:
    """Version 1.1 base, 65,536 steps of 128 rows: the short run of Shazeer (arXiv 2002.05202, section 3.2) and nanoT5.

        plmjax pretrain experiments/t5_base_8x8.py:nano --data.input C4
        plmjax report RUN --against t5_base_v1_1

    Published: 1.942 +- 0.004 nats a target token of held-out C4 (four seeds, table 1); 1.995 by nanoT5 with Adafactor.
    The learning rate is T5's, and falls linearly to 0 over the last tenth of the steps, from 1 / sqrt(58,982).

    Plans (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured: refined, a step of 219 to 230 ms on v3:2x2 (roofline
    130, MFU 48 to 51 %, 6.2 of 16 GiB), all in 4.0 to 4.2 hours; 64 to 71 ms on v5e:2x4 (roofline 35, MFU 49 to 54 %,
    5.5 of 16 GiB), all in 1.2 to 1.3 hours. This run was not made.

    Deviation: nanoT5 clips the gradient at 1 and has no z-loss; T5's code clips nothing and has one. nanoT5's best run,
    1.953, had AdamW with steps relative to the size of the parameters, which plmjax has for Adafactor only.
    """
    run = base_v1_1()
    return dataclasses.replace(
        run,
        training=dataclasses.replace(
            run.training, steps=65_536, batch_size=128, remat="none", evaluate_every=2_048, evaluation_batches=100
        ),
        checkpoint=Checkpoint(every=4_096),
        phases=(
            Phase(fraction=0.9),
            Phase(fraction=0.1, changes=("optimizer.learning_rate=0.0041176", "optimizer.schedule=linear")),
        ),
    )


def _version_1_1(run: Experiment, model: T5Config) -> Experiment:
    return dataclasses.replace(run, model=dataclasses.replace(model, dropout_rate=0.0))
