"""CoVe on tasks: the biattentive network on [GloVe ; CoVe], and on GloVe only.

    plmjax finetune experiments/cove_classification.py --from runs/cove_multi30k --data.folder subjectivity
    plmjax finetune experiments/cove_classification.py:vectors --from runs/cove_multi30k --data.folder subjectivity
    plmjax finetune experiments/cove_classification.py:snli --from runs/cove_multi30k --data.folder snli
    plmjax finetune experiments/cove_classification.py:snli_vectors --from runs/cove_multi30k --data.folder snli

The run of experiments/cove_multi30k.py has both kinds of vectors, which are frozen. As published (McCann et al. 2017)
except for the size: Adam with a rate of 0.001.

Result of seed 0, accuracy in percent on the validation file after each epoch, with the three epochs of translation that
are recorded there. A run takes about three minutes of one core of an AMD EPYC.

                    [GloVe ; CoVe]          GloVe
    subjectivity    83.0   83.3   84.8      82.6   74.7   82.7

The standard error of a number is 1.2: with one seed, the difference of 2.1 points between the best numbers of both rows
is not significant. SNLI was not measured after the network got its batch normalization.
"""

import dataclasses

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Training
from plmjax.finetuning.starts.biattentive_classifier import BiattentiveClassifier
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Constant


def experiment() -> Experiment:
    """Subjectivity, from vectors and CoVe; LSTMs of size 64."""
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(train="train.tsv.gz", validation="dev.tsv.gz", text="sentence", sequence_length=48),
        optimizer=AdamW(learning_rate=1e-3, schedule=Constant(), weight_decay=0.0, clip_norm=5.0, frozen=("encoder",)),
        training=Training(steps=0, batch_size=64, log_every=50),
        finetuning=Finetuning(epochs=3.0, evaluations=1.0),
        start=BiattentiveClassifier(size=64),
        checkpoint=Checkpoint(every=0, keep=1, best="-eval/accuracy", prefer="best"),
    )


def vectors() -> Experiment:
    """The same without CoVe."""
    run = experiment()
    return dataclasses.replace(run, start=dataclasses.replace(run.start, contextual=False))


def snli() -> Experiment:
    """Entailment, contradiction or neither of a premise and a hypothesis (Bowman et al. 2015)."""
    run = experiment()
    pairs = {"train": "train.tsv", "validation": "dev.tsv", "text": "premise", "text_pair": "hypothesis"}
    return dataclasses.replace(run, data=dataclasses.replace(run.data, **pairs))


def snli_vectors() -> Experiment:
    """The same without CoVe."""
    return dataclasses.replace(snli(), start=vectors().start)
