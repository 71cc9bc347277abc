"""CoVe on tasks: the biattentive network upon [GloVe ; CoVe], and upon GloVe alone.

    plmjax finetune experiments/cove_classification.py --from runs/cove_multi30k --data.folder subjectivity
    plmjax finetune experiments/cove_classification.py:vectors --from runs/cove_multi30k --data.folder subjectivity
    plmjax finetune experiments/cove_classification.py:snli --from runs/cove_multi30k --data.folder snli
    plmjax finetune experiments/cove_classification.py:snli_vectors --from runs/cove_multi30k --data.folder snli

The run of experiments/cove_multi30k.py gives both kinds of vectors, which are not trained further. As published
(McCann et al. 2017) but for its size: Adam with a rate of 0.001.

Result of seed 0, accuracy in percent of the validation file after each epoch, upon the short translation run that is
recorded there; SNLI with `--finetuning.epochs 2`, a tenth of the premises of its development file held out. A run takes
two to three minutes of one core of an AMD EPYC.

                    [GloVe ; CoVe]          GloVe
    subjectivity    78.6   83.5   83.7      77.2   83.6   84.0
    snli            45.9   51.0             44.5   50.3

The standard errors are 1.2 and 1.6: CoVe from so short a translation run adds nothing that could be seen here.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.biattentive import Biattentive
from plmjax.finetuning.sentences import Sentences, SequenceClassification
from plmjax.training.optimizers import AdamW
from plmjax.training.schedules import Constant


def experiment() -> Experiment:
    """Subjectivity, from vectors and CoVe; cells of 64 numbers."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(train="train.tsv.gz", validation="dev.tsv.gz", text="sentence", sequence_length=48),
        optimizer=AdamW(learning_rate=1e-3, schedule=Constant(), weight_decay=0.0, clip_norm=5.0, frozen=("encoder",)),
        training=Training(steps=0, batch_size=64, log_every=50),
        finetuning=Finetuning(epochs=3.0, evaluations=1.0),
        start=Biattentive(size=64),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def vectors() -> Experiment:
    """The same without CoVe."""
    run = experiment()
    return dataclasses.replace(run, start=dataclasses.replace(run.start, contextual=False))


def snli() -> Experiment:
    """Does the premise entail or contradict the hypothesis, or neither (Bowman et al. 2015)."""
    run = experiment()
    pairs = {"train": "train.tsv", "validation": "dev.tsv", "text": "premise", "text_pair": "hypothesis"}
    return dataclasses.replace(run, data=dataclasses.replace(run.data, **pairs))


def snli_vectors() -> Experiment:
    """The same without CoVe."""
    return dataclasses.replace(snli(), start=vectors().start)
