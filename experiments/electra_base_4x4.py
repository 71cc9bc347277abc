"""ELECTRA-Base as published (Clark et al., arXiv 2003.10555, table 6), on a 4x4 slice of 16 chips.

    plmjax pretrain experiments/electra_base_4x4.py --data.input WIKIPEDIA BOOKS
    plmjax plan experiments/electra_base_4x4.py --topology v3:4x4

Recipe: batch 256 of length 512, 766,000 steps; BERT's AdamW at 2e-4, a warm-up of 10,000 steps that multiplies the
linear decay; weight decay 0.01; dropout 0.1; a generator a third as wide; it predicts 15 % of the tokens, and the
discriminator classifies every token, with 50 times the weight. The user provides the text; the paper used English
Wikipedia and BooksCorpus, 3.3 billion words together.

Plan for v3:4x4 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 149 ms (122 to 133 refined, roofline 72
ms), MFU 30 % (34 to 36 refined), 1.8 GiB of the 16 of a core; 31.8 hours and 508 chip-hours for the whole run.
The paper trained it in 4 days on 16 chips of TPU v3.

Result to expect: 88.8 % on MNLI's matched development set, the median of the release's ten fine-tuning runs (its
README). This run was planned, but not made.

Deviations from the released code: as in electra_small.
"""

from plmjax.data.layouts import SingleSegment
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.electra import ElectraConfig
from plmjax.objectives.electra import ElectraPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import LinearTimesWarmup


def experiment() -> Experiment:
    """119 million parameters, both networks together, on 16 chips."""
    return Experiment(
        model=ElectraConfig.base(),
        objective=ElectraPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=SingleSegment(), sequence_length=512, held_out=0.005),
        optimizer=BertAdamW(learning_rate=2e-4, schedule=LinearTimesWarmup(warmup_steps=10_000)),
        training=Training(steps=766_000, batch_size=256, log_every=100, evaluate_every=10_000, evaluation_batches=100),
        checkpoint=Checkpoint(every=50_000),
    )
