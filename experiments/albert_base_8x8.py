"""ALBERT as published (Lan et al., arXiv 1909.11942, section 4.1; google-research/albert), on an 8x8 slice of 64 chips.

    plmjax pretrain experiments/albert_base_8x8.py --data.input WIKIPEDIA BOOKS
    plmjax plan experiments/albert_base_8x8.py:xxlarge --topology v3:8x8

Recipe: 125,000 steps of 4,096 rows of 512 tokens; LAMB at 1.76e-3 with 3,125 steps of warm-up, then linear decay;
weight decay 0.01; dropout 0.1, none for xxlarge and version 2; at most 20 tokens a row are predicted (about 4 %), in
runs of up to three words, and the order of two texts. The user provides the text; the paper used English Wikipedia
(2,500M words) and BooksCorpus (800M words), version 2 more.

Plan for v3:8x8 (libtpu 0.0.52, jax 0.10.2), estimated, not measured. GiB are of the 16 of a core:

    size      microbatches   ms a step     refined, ms   roofline, ms    MFU   refined MFU   GiB   hours   chip-hours
    base                 2         384       320 to 336           202   39 %    45 to 47 %   3.0    13.3          852
    large                4       1,158     999 to 1,045           546   45 %    50 to 52 %   3.7    40.2        2,572
    xlarge               8       2,918   2,706 to 2,771         2,012   69 %    73 to 74 %   4.3     101        6,484
    xxlarge             16       5,205   4,952 to 5,030         3,943   76 %    78 to 80 %   5.9     181       11,566
    base_v2              2         324       278 to 291           166   47 %    52 to 54 %   2.9     901       57,654

Parameters and optimizer state of xxlarge take 2.5 GiB of that: the weights of one layer, not of twelve. On v3:16x32,
512 chips, in 2 microbatches, a step of it takes 684 ms (647 to 660 refined, roofline 493 ms), 72 %; 23.7 hours and
12,160 chip-hours for the whole run.
The paper trained on 64 to 512 chips of Cloud TPU v3.

Result to expect: on MNLI's dev set the released version 1 of base reaches 81.6 %, version 2 of base 84.6 %, of xxlarge
90.6 % (google-research/albert). These runs were planned, but not made.

Deviations from the released code: every step samples other tokens to predict, where the released code samples them
forty times in advance (`--objective.masking static` samples them once); activations are bfloat16 over float32
parameters; a tokenizer is trained on the text unless `--tokenizer.path` names the published spiece.model; half a
percent of the documents is held out for evaluation; version 2's learning rate and warm-up, which are not published, are
version 1's.
"""

from plmjax.data.layouts import SentenceOrder
from plmjax.experiment import Checkpoint, Data, Experiment, Mesh, Tokenizer, Training
from plmjax.models.albert import AlbertConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.training.optimizers import Lamb
from plmjax.training.optimizers.schedules import Linear


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
    """ALBERT-xxlarge, 223 million parameters with the computation of 2.4 billion."""
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
        optimizer=Lamb(learning_rate=1.76e-3, schedule=Linear(warmup_steps=3_125)),
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
