"""ELECTRA-Small as published (Clark et al., arXiv 2003.10555, table 6), on a 2x2 slice of 4 chips.

    plmjax pretrain experiments/electra_small.py --data.input WIKIPEDIA BOOKS
    plmjax plan experiments/electra_small.py --topology v3:2x2

Recipe: batch 128 of length 128, 1,000,000 steps; BERT's AdamW at 5e-4, a warm-up of 10,000 steps that multiplies the
linear decay; weight decay 0.01; dropout 0.1; the generator predicts 15 % of the tokens, and the discriminator
classifies every token, with 50 times the weight. The user provides the text; the paper used English Wikipedia and
BooksCorpus, 3.3 billion words together.

Plan for v3:2x2 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 22 ms (16.3 to 22 refined, roofline 7.4
ms), MFU 11 % (11 to 14 refined), 0.3 GiB of the 16 of a core; 6.1 hours and 25 chip-hours for the whole run.
The paper trained it in 4 days on one V100.

Result to expect: 81.3 % on MNLI's matched development set, the median of the release's ten fine-tuning runs (its
README). This run was planned, but not made.

Deviations from the released code: activations are bfloat16 over float32 parameters; the generator's head has the exact
GELU; a tokenizer is trained on the text unless `--tokenizer.path` names the published vocabulary; half a percent of the
documents is held out for evaluation.
"""

from plmjax.data.layouts import SingleSegment
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.electra import ElectraConfig
from plmjax.objectives.electra import ElectraPretraining
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import LinearTimesWarmup


def experiment() -> Experiment:
    """14 million parameters, both networks together."""
    return Experiment(
        model=ElectraConfig.small(),
        objective=ElectraPretraining(),
        tokenizer=Tokenizer(kind="wordpiece", vocab_size=30522),
        data=Data(layout=SingleSegment(), sequence_length=128, held_out=0.005),
        optimizer=BertAdamW(learning_rate=5e-4, schedule=LinearTimesWarmup(warmup_steps=10_000)),
        training=Training(
            steps=1_000_000, batch_size=128, log_every=100, evaluate_every=10_000, evaluation_batches=100
        ),
        checkpoint=Checkpoint(every=50_000),
    )
