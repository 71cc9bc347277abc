"""GPT fine-tuned as its authors do it (Radford et al. 2018, sections 3.2, 3.3 and 4.1), from any GPT or GPT-2.

plmjax finetune experiments/finetune_gpt.py --from runs/gpt --workdir runs/task --data.train train.tsv \
    --data.validation dev.tsv --data.text sentence --data.label label

Rows are start A extract, pairs start A delimiter B extract; a linear head reads the vector at extract. Tokens that the
checkpoint lacks are added when the run starts. The loss of the next token is added with half the weight;
`--objective.language_model 0` leaves it out.

Recipe: three epochs of 32 texts a step, Adam at 6.25e-5 with 0.2 % of warm-up that multiplies the linear decay, weight
decay of 0.01 for matrices only, gradients clipped at 1, dropout 0.1 everywhere (openai/finetune-transformer-lm
train.py).

Deviation: decoupled decay is multiplied by the learning rate only; the released opt.py also multiplies it by Adam's
bias correction, a factor of 0.3 at the first step and of 1 after some thousand steps.
Deviation: the longer text of a pair is truncated first; the released code truncates each to half of the row.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.runs.weight_mappings.pairs_in_both_orders import PairsInBothOrders
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import LinearTimesWarmup


def experiment() -> Experiment:
    """One label per text or pair."""
    return Experiment(
        model=None,
        objective=SequenceClassification(language_model=0.5),
        data=Sentences(sequence_length=128),
        optimizer=AdamW(learning_rate=6.25e-5, schedule=LinearTimesWarmup(), epsilon=1e-8, clip_norm=1.0),
        training=Training(steps=0, batch_size=32, log_every=50),
        finetuning=Finetuning(epochs=3.0, warmup=0.002, dropout=0.1),
        checkpoint=Checkpoint(every=0),
    )


def similarity() -> Experiment:
    """One number per pair, which is read in both orders; their two vectors are added before the head."""
    return dataclasses.replace(
        experiment(), objective=Regression(language_model=0.5), weight_mapping=PairsInBothOrders()
    )


def choices() -> Experiment:
    """One of several endings or answers, each read with its context."""
    return dataclasses.replace(
        experiment(), objective=MultipleChoice(language_model=0.5), data=Choices(sequence_length=128)
    )


def subjectivity() -> Experiment:
    """Subjective or objective, as in finetune_sentences.py; for models much smaller than GPT, which learn faster."""
    run = experiment()
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, pack=16, text="sentence", label="label"),
        optimizer=dataclasses.replace(run.optimizer, learning_rate=5e-4),
        training=dataclasses.replace(run.training, batch_size=8),
    )
