"""T5 as it was published (Raffel et al. 2020), on slices of TPU v3.

    plmjax pretrain experiments/t5_base_8x8.py --data.input WEB_PAGES
    plmjax pretrain experiments/t5_base_8x8.py:large --data.input WEB_PAGES
    plmjax plan experiments/t5_base_8x8.py:eleven_billion --topology v3:8x16

Published, of the released models: the sizes, 1,000,000 steps of 2,048 sources of 512 tokens with targets of 114, spans
of 3 tokens that hide 15 % of a text (568 tokens become a row), Adafactor with the inverse square root of the step,
dropout 0.1 in version 1.0 and none in version 1.1 (section 3.7 and google-research/text-to-text-transfer-transformer,
released_checkpoints.md). A cased unigram vocabulary of 32,000 pieces and 100 sentinels; the table has 32,128 rows. The
user provides the text; the paper used C4, 750 GB of filtered web pages.

Plan of `eleven_billion` for v3:8x16 (libtpu 0.0.52, jax 0.10.2), over data 1 x fsdp 32 x tensor 8, in 2 microbatches,
estimated, not measured: a step of 6,200 ms (5,868 to 6,099 refined, roofline 2,962 ms), MFU 48 % (49 to 50 refined),
3.0 GiB of the 16 of a core, of which the float32 parameters and Adafactor's moments take 0.35 together; 1,722 hours and
220,434 chip-hours for the whole run. It reports that gradients are reduced whole before they are sharded. The other
sizes were not planned, and none of these runs was made.

Deviation: texts follow each other in a row; the released code ends a row at the end of a text, and packs.
Deviation: version 1.0 was pretrained on a mixture of C4 and of its evaluation tasks, version 1.1 on C4 only; here both
are trained on text only.
"""

import dataclasses

from plmjax.data.layouts import Blocks
from plmjax.experiment import Checkpoint, Data, Experiment, Mesh, Tokenizer, Training
from plmjax.models.t5 import T5Config
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.training.optimizers import Adafactor


def experiment() -> Experiment:
    """Base of version 1.0: 223 million parameters."""
    return Experiment(
        model=T5Config.base(),
        objective=SpanCorruption(z_loss=1e-4),
        tokenizer=Tokenizer(kind="t5-unigram", vocab_size=32100),
        data=Data(layout=Blocks(), sequence_length=568, held_out=0.005),
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
    return dataclasses.replace(experiment(), model=T5Config.large(), mesh=Mesh(fsdp=4, tensor=1))


def three_billion() -> Experiment:
    """2,852 million parameters."""
    return dataclasses.replace(experiment(), model=T5Config.three_billion(), mesh=Mesh(fsdp=8, tensor=1))


def eleven_billion() -> Experiment:
    """11,307 million parameters, for the 256 cores of v3:8x16: each layer is split in 8, and gathered from 32 cores."""
    run = experiment()
    training = dataclasses.replace(run.training, accumulation=2)
    return dataclasses.replace(
        run, model=T5Config.eleven_billion(), training=training, mesh=Mesh(data=1, fsdp=32, tensor=8)
    )


def base_v1_1() -> Experiment:
    """Version 1.1: 248 million parameters, no dropout."""
    return _version_1_1(experiment(), T5Config.base_v1_1())


def xxl_v1_1() -> Experiment:
    """Version 1.1: 11,135 million parameters."""
    return _version_1_1(eleven_billion(), T5Config.xxl_v1_1())


def _version_1_1(run: Experiment, model: T5Config) -> Experiment:
    return dataclasses.replace(run, model=dataclasses.replace(model, dropout_rate=0.0))
