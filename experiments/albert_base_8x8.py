"""ALBERT as published (Lan et al., arXiv 1909.11942, section 4.1 and the released README), on an 8x8 slice of 64 chips.

plmjax pretrain experiments/albert_base_8x8.py --data.input WIKIPEDIA BOOKS
plmjax plan experiments/albert_base_8x8.py:xxlarge --topology v3:8x8
"""

from plmjax.data.layouts import SentenceOrder
from plmjax.experiment import Checkpoint, Data, Experiment, Mesh, Optimizer, Tokenizer, Training
from plmjax.models.albert import AlbertConfig
from plmjax.objectives.albert import AlbertPretraining


def experiment() -> Experiment:
    """ALBERT-base, 12 million parameters."""
    return _published(AlbertConfig.base(), accumulation=2)


def large() -> Experiment:
    """ALBERT-large, 18 million parameters."""
    return _published(AlbertConfig.large(), accumulation=4)


def xlarge() -> Experiment:
    """ALBERT-xlarge, 59 million parameters."""
    return _published(AlbertConfig.xlarge(), accumulation=8)


def xxlarge() -> Experiment:
    """ALBERT-xxlarge, 223 million parameters that compute as 2.4 billion would."""
    return _published(AlbertConfig.xxlarge(), accumulation=16)


def base_v2() -> Experiment:
    """ALBERT-base of version 2: no dropout and 10 million steps (the other sizes took 3 million)."""
    return _published(AlbertConfig.base_v2(), accumulation=2, steps=10_000_000)


def _published(model: AlbertConfig, accumulation: int, steps: int = 125_000) -> Experiment:
    return Experiment(
        model=model,
        objective=AlbertPretraining(),
        tokenizer=Tokenizer(kind="sentencepiece-unigram", vocab_size=30000),
        data=Data(layout=SentenceOrder(), held_out=0.005, sequence_length=512),
        optimizer=Optimizer(name="lamb", learning_rate=1.76e-3, warmup_steps=3_125),
        training=Training(
            steps=steps,
            batch_size=4096,
            accumulation=accumulation,
            log_every=100,
            evaluate_every=2_500,
            evaluation_batches=100,
        ),
        checkpoint=Checkpoint(every=6_250),
        mesh=Mesh(
            zero=False
        ),  # shared layers have little optimizer state, not worth gathering what each device updates
    )
