"""Adaptive-Span as published (Sukhbaatar et al. 2019, arXiv 1905.07799; experiments/*.sh of facebookresearch/
adaptive-span), and the all-attention network.

    plmjax pretrain experiments/adaptive_span_8x8.py --data.input enwik8
    plmjax plan experiments/adaptive_span_8x8.py --topology v3:8x8

Recipe: 600,000 steps of 64 rows of 512 characters, spans up to 8,192; Adagrad at 0.07 with a warm-up of 32,000 steps,
the gradient of each array clipped to 0.03; dropout 0.3, large 0.4; 5e-7 of the spans in the loss. The large one is
trained for 150,000 steps here, and then for 20,000 at a tenth of the rate:

    plmjax pretrain experiments/adaptive_span_8x8.py:large --data.input enwik8 --workdir runs/large
    plmjax pretrain experiments/adaptive_span_8x8.py:large_end --from runs/large --data.input enwik8

Plans of the base size (libtpu 0.0.42.1, jax 0.10.2), with spans of 8,192, the longest possible. All times are
estimated, not measured. Hours follow the compiler's estimate:

    slice     compiler, ms     refined, ms    refined MFU   GiB   hours   chip-hours
    v5e:8x8              51        21 to 24     20 to 22 %   0.7     8.5          543
    v3:8x8               87        76 to 82      9 to 10 %   0.7    14.6          932

v3 has 128 cores for 64 rows, so that two cores share a row. The plan counts the sums of their features as gradient.

Results to expect: 1.02 bits a character on enwik8's test file for the base size, 0.98 for the large one. None of these
runs was made.

The text is the published file, and the vocabulary the 205 bytes that occur in it.
"""

import dataclasses

from plmjax.data.layouts import ContiguousStreams
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.objectives.adaptive_span import AdaptiveSpanPretraining
from plmjax.training.optimizers import Adagrad
from plmjax.training.optimizers.schedules import Constant


def experiment() -> Experiment:
    """enwik8, 12 layers, 38.5 million parameters."""
    return _run(AdaptiveSpanConfig.enwik8_base(), steps=600_000)


def small() -> Experiment:
    """enwik8, 8 layers, spans up to 1,024."""
    run = _run(AdaptiveSpanConfig.enwik8_small(), steps=150_000)
    return dataclasses.replace(run, objective=AdaptiveSpanPretraining(span_coefficient=2e-6))


def large() -> Experiment:
    """enwik8, 24 layers, 209 million parameters; the first 150,000 steps."""
    return _run(AdaptiveSpanConfig.enwik8_large(), steps=150_000)


def large_end() -> Experiment:
    """The last 20,000 steps of `large`, at a tenth of the rate."""
    run = large()
    return dataclasses.replace(
        run,
        optimizer=dataclasses.replace(run.optimizer, learning_rate=0.007, schedule=Constant()),
        training=dataclasses.replace(run.training, steps=20_000),
    )


def all_attention() -> Experiment:
    """enwik8, 36 layers without feed-forward networks, 114 million parameters."""
    return _run(AdaptiveSpanConfig.all_attention(), steps=600_000)


def _run(model: AdaptiveSpanConfig, steps: int) -> Experiment:
    return Experiment(
        model=model,
        objective=AdaptiveSpanPretraining(),
        tokenizer=Tokenizer(kind="byte", vocab_size=model.vocab_size),
        data=Data(layout=ContiguousStreams(), format="enwik8", sequence_length=512),
        optimizer=Adagrad(learning_rate=0.07, schedule=Constant(warmup_steps=32_000), clip_norm=0.0, clip_each=0.03),
        training=Training(steps=steps, batch_size=64, log_every=200, evaluate_every=4000, evaluation_batches=0),
        checkpoint=Checkpoint(every=4000, keep=2, best="eval/loss"),
    )
