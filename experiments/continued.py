"""Continued pretraining of an existing model on text of another kind (Gururangan et al., arXiv 2004.10964).

    plmjax import bert-base-uncased/ runs/imported
    plmjax pretrain experiments/continued.py --from runs/imported --workdir runs/domain --data.input my_text/

The run in --from may be of any system, of plmjax or from `plmjax import`. Its model, parameters, tokenizer, objective
and layout are taken; options may change the last two, as in `--objective.rate 0.2`. The optimizer is new and starts at
step 0.

`discriminator` is for a DeBERTa-v3 from `plmjax import`, which has no generator: it gets a new one with its table.

Twelve million tokens, in a thousand steps at a fifth of the published rate, suit a text of a few megabytes. With more
text, raise `training.steps` and `training.batch_size`.
"""

import dataclasses

from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Training
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.runs.weight_mappings.deberta import BesideGenerator
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear


def experiment() -> Experiment:
    """Any model with its pretraining objective, a thousand steps of 96 rows of 128 tokens."""
    return Experiment(
        model=None,
        objective=None,
        data=Data(layout=None, sequence_length=128, held_out=0.05),
        optimizer=AdamW(learning_rate=2e-5, schedule=Linear(warmup_steps=100)),
        training=Training(steps=1000, batch_size=96, log_every=50, evaluate_every=250, evaluation_batches=50),
        checkpoint=Checkpoint(every=250, keep=2, best="eval/loss"),
    )


def discriminator() -> Experiment:
    """A DeBERTa's discriminator alone, beside a new generator with its table of words."""
    run = experiment()
    data = dataclasses.replace(run.data, layout=FullSentences())
    return dataclasses.replace(run, objective=DebertaPretraining(), data=data, weight_mapping=BesideGenerator())
