"""ModernBERT-Base in three stages (Warner et al., arXiv 2412.13663), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/modernbert_base_8x8.py --data.input TEXT --tokenizer.path TOKENIZER
    plmjax plan experiments/modernbert_base_8x8.py --topology v5e:8x8 --breakdown
    plmjax plan experiments/modernbert_base_8x8.py:published --topology v6e:8x8 --breakdown

`experiment` reads 2e10 tokens, about the model FLOPs of BERT-Base's 1,000,000 steps. `published` reads the paper's 2e12
tokens.

Recipe (table 3 of the paper, and the configurations beside its code): rows of 1,024 tokens with a batch that grows by
equal steps, then rows of 8,192 with a theta of 160,000 in global layers, then a decay of 1 - sqrt to a thousandth of
the peak; StableAdamW with moments that are kept from stage to stage; 30 % of the tokens are predicted, and 15 % in the
evaluations of the first stage; dropout of the output of attention alone. The user provides the text and the tokenizer:
the paper took OLMo's byte-level BPE, with special tokens in BERT's template, and did not publish its text.

Plans (libtpu 0.0.42.1, jax 0.10.2), estimated, not measured; refined ms a step, tokens a second in millions:

    slice     run          rows of      rows    ms a step        roofline   MFU            tokens a second
    v5e:8x8   experiment   1,024       1,536    244 to 265         107 ms   39 to 42 %     5.9 to 6.4
    v5e:8x8   experiment   8,192         192    439 to 480         169 ms   35 to 38 %     3.3 to 3.6
    v5e:8x8   published    1,024       4,608    698 to 754         315 ms   41 to 44 %     6.3 to 6.8
    v5e:8x8   published    8,192         576    1,283 to 1,399     507 ms   36 to 39 %     3.4 to 3.7
    v6e:8x8   experiment   1,024       1,536    135 to 155          63 ms   14 to 16 %     10.2 to 11.7
    v6e:8x8   experiment   8,192         192    279 to 304          81 ms   12 to 13 %     5.2 to 5.6
    v6e:8x8   published    1,024       4,608    386 to 442         187 ms   15 to 17 %     10.7 to 12.2
    v6e:8x8   published    8,192         576    820 to 891         240 ms   12 to 13 %     5.3 to 5.8

A step needs at most 7.9 of the 16 GiB of a v5e and 7.7 of the 32 GiB of a v6e. 2e10 tokens take an hour on v5e:8x8 and
the two long phases of `published` 88 to 95 hours; on v6e:8x8 about 35 minutes, and 50 to 57 hours. A v6e has more than
four times the FLOP/s of a v5e and twice its bandwidth, so the HBM bounds it. The products of attention fill half of a
matrix unit, because a head has 64 features (docs/notes/tpu_step.md, "Attention of long rows"). The layers do not travel
along rings (`rings="off"`): they would wait longer than without. The compiler takes a quarter of an hour of one core
for each row length.

Result to expect of `published`: GLUE 88.4 (MNLI 89.1, SST-2 96.0, CoLA 65.1), BEIR 41.6 with one vector a text (tables
5 and 7 of the paper). Its training took 246 hours of eight H100 for Base, at 24 to 26 % of their peak. This run was
not made.

Deviation: exactly 30 % of the tokens of each sequence are predicted, and [CLS] and [SEP] are chosen as others are; the
released code draws each token for itself.
Deviation: the released Base is the mean of four checkpoints of its decay, which `plmjax average --best 3 --last 1`
writes.
"""

from plmjax.data.layouts import Documents
from plmjax.experiment import Checkpoint, Data, Experiment, Phase, Tokenizer, Training
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.training.optimizers import StableAdamW
from plmjax.training.optimizers.schedules import WarmupStableDecay

LONG = ("model.global_rope_theta=160000", "objective.evaluation_rate=0", "data.layout.pack=32")
"""Changes of the phases with rows of 8,192 tokens."""
STAGE = ("optimizer.learning_rate=3e-4", "optimizer.schedule.warmup_tokens=0")
"""Changes that restart the schedule at a lower rate."""
DECAY = (
    "optimizer.schedule.shape=one_minus_sqrt",
    "optimizer.schedule.decay_fraction=1",
    "optimizer.schedule.floor=0.001",
)


def experiment() -> Experiment:
    """149 million parameters, 2e10 tokens."""
    return _stages(
        warmup=2e8,
        ramp=Phase(tokens=1e9, ramp=3, batch_size=1152),
        tokens=(16e9, 2.5e9, 5e8),
        batch_size=1536,
        accumulation=(3, 3),
    )


def published() -> Experiment:
    """149 million parameters, 2e12 tokens."""
    return _stages(
        warmup=3e9,
        ramp=Phase(tokens=50e9, ramp=5, batch_size=3840, accumulation=12),
        tokens=(1.669e12, 250e9, 50e9),
        batch_size=4608,
        accumulation=(9, 9),
    )


def _stages(
    *,
    warmup: float,
    ramp: Phase,
    tokens: tuple[float, float, float],
    batch_size: int,
    accumulation: tuple[int, int],
) -> Experiment:
    short, long, decay = tokens
    microbatches, long_microbatches = accumulation
    rows = {"sequence_length": 8192, "batch_size": batch_size // 8, "accumulation": long_microbatches}
    return Experiment(
        model=ModernBertConfig.base(global_rope_theta=10_000.0),
        objective=MaskedLanguageModel(rate=0.3, evaluation_rate=0.15, choose_special=True),
        tokenizer=Tokenizer(kind="byte-bpe", vocab_size=50_368, lowercase=False),
        data=Data(layout=Documents(pack=8), sequence_length=1024, held_out=0.0005),
        optimizer=StableAdamW(learning_rate=8e-4, schedule=WarmupStableDecay(warmup_tokens=warmup), weight_decay=1e-5),
        training=Training(
            steps=0,
            batch_size=batch_size,
            accumulation=microbatches,
            log_every=50,
            evaluate_every=1000,
            evaluation_batches=20,
            rings="off",
        ),
        checkpoint=Checkpoint(every=1000, keep=10, best="eval/loss"),
        phases=(
            ramp,
            Phase(tokens=short),
            Phase(tokens=long, changes=(*LONG, *STAGE), **rows),
            Phase(tokens=decay, changes=(*LONG, *STAGE, *DECAY), **rows),
        ),
    )
